"""Sampled text has the model's own distribution at every output position, with drafts too: frequencies over fixed seeds against
exact probabilities from transformers, and a wrong rule of acceptance is found.

Row D1 of domain.md.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from executor_svc import commit
from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.drafter import Drafts
from executor_svc.plan import Sampling
from tests.support import tiny_models
from tests.support.drafted import run

PROMPT = [5, 44, 97, 12]
NUM_TOKENS = 3
NUM_SEQUENCES = 6400
AT_ONCE = 64
TEMPERATURE = 1.0


class Gambler:
    """Guesses from a distribution of its own, which knows nothing of the row: a few tokens, over and over."""

    name = "gambler"

    def __init__(self, weights: np.ndarray) -> None:
        self._weights = weights / weights.sum()
        self._random = np.random.default_rng(11)

    def observe(self, batch, hidden):
        """See `Drafter`."""

    def forget(self):
        """See `Drafter`."""

    def propose(self, slots, rows, *, most):
        shape = (len(rows), int(most.max(initial=0)))
        return Drafts(self._random.choice(len(self._weights), size=shape, p=self._weights).astype(np.int32), most.astype(np.int32))


@pytest.fixture(scope="module")
def model():
    return tiny_models.make(tiny_models.configs()["llama"])


@pytest.fixture(scope="module")
def exact(model) -> list[np.ndarray]:
    """f64 [vocab] for each output position: all texts of the positions before it, weighed."""
    vocab = tiny_models.VOCAB_SIZE
    texts, weights, found = torch.tensor([PROMPT]), torch.ones(1, dtype=torch.float64), []
    for position in range(NUM_TOKENS):
        with torch.inference_mode():
            logits = torch.cat([model(part, use_cache=False).logits[:, -1] for part in texts.split(8192)])
        probabilities = (logits.double() / TEMPERATURE).softmax(-1)
        found.append((weights[:, None] * probabilities).sum(0).numpy())
        if position + 1 < NUM_TOKENS:
            weights = (weights[:, None] * probabilities).flatten()
            texts = torch.cat((texts.repeat_interleave(vocab, 0), torch.arange(vocab).repeat(len(texts))[:, None]), dim=1)
    return found


@pytest.fixture(scope="module")
def backend(model, tmp_path_factory) -> Iterator[CpuBackend]:
    folder = tiny_models.save(model, tmp_path_factory.mktemp("llama"))
    backend = CpuBackend(ExecutorSettings(model=str(folder), precision="f32", num_blocks=128, max_num_seqs=AT_ONCE, num_threads=1))
    yield backend
    backend.close()


def counts(backend: CpuBackend, drafter: Gambler | None) -> tuple[np.ndarray, int]:
    """(how often each token came at each output position, i64 [NUM_TOKENS, vocab]; drafts that counted)."""
    found = np.zeros((NUM_TOKENS, tiny_models.VOCAB_SIZE), np.int64)
    accepted = 0
    for first in range(0, NUM_SEQUENCES, AT_ONCE):
        seeds = range(first, first + AT_ONCE)
        ways = [Sampling(temperature=TEMPERATURE, seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True) for seed in seeds]
        backend.reset()
        for out in run(backend, [PROMPT] * len(ways), ways, drafter=drafter, depth=2 if drafter else 0):
            found[np.arange(NUM_TOKENS), out.tokens] += 1
            accepted += out.num_accepted
    return found, accepted


def p_value(seen: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's chi-square: the chance of a fit this bad or worse. Tokens of fewer than five expected share a bin."""
    expected = probabilities * seen.sum()
    rare = expected < 5
    bins = [(seen[~rare], expected[~rare]), (seen[rare].sum(keepdims=True), expected[rare].sum(keepdims=True))]
    observed, wanted = (np.concatenate(parts) for parts in zip(*bins, strict=True))
    assert len(wanted) > 20
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    half = torch.tensor([(len(wanted) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def gambler(exact: list[np.ndarray]) -> Gambler:
    return Gambler(exact[1] ** 6)


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "drafts"])
def test_d1_tokens_come_as_often_as_the_model_says(backend, exact, drafts):
    seen, accepted = counts(backend, gambler(exact) if drafts else None)
    assert (accepted > 50) == drafts
    for position in range(NUM_TOKENS):
        assert p_value(seen[position], exact[position]) > 1e-3, position


def test_d1_a_rule_that_accepts_every_draft_is_found(backend, exact, monkeypatch):
    """Planted: what follows a wrong draft is emitted as if the draft had been right."""
    monkeypatch.setattr(commit, "num_right", lambda chosen, *, drafts, starts: (np.diff(starts) - 1).astype(np.int32))
    seen, _ = counts(backend, gambler(exact))
    assert p_value(seen[1], exact[1]) > 1e-3
    assert p_value(seen[2], exact[2]) < 1e-6
