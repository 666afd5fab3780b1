"""The two chances that `bench.acceptance` compares: against the sampler itself, and against each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bench.acceptance import chances, rejection, shared_noise
from kernels.reference.sample import uniform

LOGITS = arrays.arrays(np.float64, 12, elements=st.floats(-30, 30))


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (0.7, 0.9), (1.0, 1.0)])
def test_the_sampler_with_the_same_noise_agrees_as_often_as_is_said(temperature: float, top_p: float) -> None:
    random = np.random.default_rng(5)
    for _ in range(3):
        p, q = (chances(2 * random.standard_normal(9), temperature=temperature, top_p=top_p) for _ in range(2))
        trials = 3000
        same = 0
        with np.errstate(divide="ignore"):
            for trial in range(trials):
                noise = -np.log(-np.log1p(-np.array([uniform(trial, 3, token) for token in range(9)])))
                same += np.argmax(np.log(p) + noise) == np.argmax(np.log(q) + noise)
        chance = shared_noise(p, q)
        assert abs(same / trials - chance) < 4 * np.sqrt(chance * (1 - chance) / trials) + 1e-9


@given(LOGITS, LOGITS, st.sampled_from([0.0, 0.3, 1.0, 2.0]), st.sampled_from([0.5, 0.9, 1.0]))
def test_no_rule_accepts_more_than_rejection_sampling_and_equals_always_agree(
    first: np.ndarray, second: np.ndarray, temperature: float, top_p: float
) -> None:
    p, q = (chances(logits, temperature=temperature, top_p=top_p) for logits in (first, second))
    ours, most = shared_noise(p, q), rejection(p, q)
    assert most / (2 - most) - 1e-9 <= ours <= most + 1e-9  # Daliri et al., arXiv:2408.07978: never worse than that
    assert shared_noise(p, p) == pytest.approx(1)
    assert rejection(q, q) == pytest.approx(1)
