"""The sampler: frequencies against exact probabilities, filters and penalties against transformers, and what must never happen."""

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from kernels.cpu import crew
from kernels.cpu.sample_filter import cut
from kernels.reference import sample as reference
from tests.support.sampling import Columns, RowState, choose

# Chance goes beyond it less than once in 10,000 runs, at these degrees of freedom; and seeds are fixed, so a run is every run.
SIGMAS = 6


def normal(*shape, seed=0, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def frequencies(logits, values, *, draws=20000):
    rows = [RowState({"temperature": 1.0, "seed": 7 + i // 100, "output_pos": i % 100} | values) for i in range(draws)]
    tokens, _ = choose(np.repeat(logits[None], draws, 0), rows)
    return np.bincount(tokens, minlength=logits.shape[0])


def chi_square(observed, probabilities):
    """(statistic - mean) / sigma over the tokens that can occur."""
    alive = probabilities > 0
    assert not observed[~alive].any()
    expected = probabilities[alive] * observed.sum()
    degrees = alive.sum() - 1
    return (((observed[alive] - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * max(degrees, 1))


def exact(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    ids = reference.kept(logits.astype(np.float64), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    probabilities = np.zeros(logits.shape[0])
    probabilities[ids] = np.exp((logits[ids].astype(np.float64) - logits.max()) / temperature)
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    "values", [{}, {"temperature": 0.6}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 12, "top_p": 0.9, "min_p": 0.02}]
)
def test_frequencies_are_the_probabilities(values):
    logits = normal(37, scale=1.2)
    assert chi_square(frequencies(logits, values), exact(logits, **values)) < SIGMAS


def test_a_planted_wrong_rule_is_seen():
    """A temperature that is 10 % off, or top_p over the unfiltered mass, is far outside what chance gives."""
    logits = normal(37, scale=1.2)
    assert chi_square(frequencies(logits, {"temperature": 1.1}), exact(logits)) > SIGMAS
    with pytest.raises(AssertionError):
        chi_square(frequencies(logits, {"top_p": 0.8}), exact(logits, top_p=0.7))


def test_choices_of_neighbouring_positions_and_seeds_are_independent():
    logits = np.zeros(16, np.float32)
    for column, step in (("output_pos", 1), ("seed", 1)):
        rows = [RowState({"temperature": 1.0, column: i * step}) for i in range(8001)]
        tokens, _ = choose(np.repeat(logits[None], len(rows), 0), rows)
        pairs = np.bincount(tokens[:-1] * 16 + tokens[1:], minlength=256)
        assert chi_square(pairs, np.full(256, 1 / 256)) < SIGMAS


def test_choices_equal_the_reference():
    logits = normal(24, 500)
    options = [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.95, "min_p": 0.01}, {"temperature": 0.0}]
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    history = {"prompt": (1, 2, 3, 3), "output": (3, 4, 4, 499), "bias": {5: 4.0, 10**6: 1.0}, "end_ids": (0, 7)}
    rows = [
        RowState(
            {"temperature": 0.8, "seed": 2**64 - 1 - i, "output_pos": i, "ban_end": i % 4 == 0} | penalties | options[i % 6],
            **history,
        )
        for i in range(24)
    ]
    columns = Columns(rows)
    tokens, out = choose(logits, rows)
    assert not out.failed.any()
    assert tokens.tolist() == [reference.sample_row(logits[i], columns=columns, row=i) for i in range(24)]


@pytest.mark.parametrize("size", [1, 5, 16, 1000, 5000])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 0.3, 5.0, 200.0])
def test_cut_is_exact_with_ties(size, spread):
    rng = np.random.default_rng(size)
    logits = np.round(rng.standard_normal(size) * spread, 1 if spread > 1 else 7).astype(np.float32)
    for top_k, top_p, min_p in [
        (0, 0.0, 0.0),
        (1, 1.0, 0.0),
        (3, 1.0, 0.0),
        (size - 1, 1.0, 0.0),
        (0, 0.37, 0.0),
        (50, 0.61, 0.003),
        (0, 1.0, 0.2),
        (0, 1.0, 1.0),
    ]:
        last_logit, last_id = cut(logits, logits.max(), np.float32(1), np.int64(top_k), np.float32(top_p), np.float32(min_p))
        mine = np.flatnonzero((logits > last_logit) | ((logits == last_logit) & (np.arange(size) <= last_id)))
        theirs = reference.kept(
            logits.astype(np.float64), temperature=1.0, top_k=top_k, top_p=float(np.float32(top_p)), min_p=float(np.float32(min_p))
        )
        np.testing.assert_array_equal(mine, np.sort(theirs), err_msg=f"{top_k} {top_p} {min_p}")


@pytest.mark.parametrize("values", [{"top_k": 9}, {"top_p": 0.75}, {"min_p": 0.08}, {"top_k": 20, "top_p": 0.9}])
def test_filters_keep_what_transformers_keeps(values):
    logits = normal(300, seed=3)
    scores = torch.from_numpy(logits[None])
    processors = {"top_k": hf.TopKLogitsWarper, "top_p": hf.TopPLogitsWarper, "min_p": hf.MinPLogitsWarper}
    for name, value in values.items():
        scores = processors[name](value)(None, scores)
    filters = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | values
    last_logit, _ = cut(
        logits,
        logits.max(),
        np.float32(1),
        *(kind(filters[name]) for name, kind in (("top_k", np.int64), ("top_p", np.float32), ("min_p", np.float32))),
    )
    np.testing.assert_array_equal(logits >= last_logit, torch.isfinite(scores[0]).numpy())


def test_penalties_equal_transformers():
    logits = normal(6, 200)
    history = [(5, 5, 9, 11), (1,), (199, 0, 3), (2, 2), (7, 8), (4, 4, 4)]
    for row, ids in enumerate(history):
        scores = hf.RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([ids]), torch.from_numpy(logits[row : row + 1].copy()))
        half = len(ids) // 2
        tokens, _ = choose(logits[row : row + 1], [RowState({"repetition_penalty": 1.7}, prompt=ids[:half], output=ids[half:])])
        assert tokens[0] == int(scores.argmax())
    favourite = int(logits[0].argmax())
    scores = hf.MinNewTokensLengthLogitsProcessor(0, 4, [favourite])(torch.tensor([[1]]), torch.from_numpy(logits[:1].copy()))
    tokens, _ = choose(logits[:1], [RowState({"ban_end": True}, end_ids=(favourite,))])
    assert tokens[0] == int(scores.argmax()) != favourite


def test_presence_and_frequency_count_output_only():
    logits = np.array([[3.0, 2.0, 1.0, 0.0]], np.float32)
    assert choose(logits, [RowState({"presence_penalty": 2.0}, prompt=(0, 0))])[0][0] == 0
    assert choose(logits, [RowState({"presence_penalty": 1.5}, output=(0,))])[0][0] == 1
    assert choose(logits, [RowState({"frequency_penalty": 0.6}, output=(0,))])[0][0] == 0
    assert choose(logits, [RowState({"frequency_penalty": 0.6}, output=(0, 0))])[0][0] == 1
    assert choose(logits, [RowState(bias={3: 3.5})])[0][0] == 3
    assert logits.tolist() == [[3.0, 2.0, 1.0, 0.0]]


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 1e-5, 1e-4])
def test_b036_tiny_temperatures_are_greedy(temperature):
    logits = normal(64, 3000, seed=5)
    rows = [RowState({"temperature": temperature, "seed": i, "top_p": 0.9, "top_k": 50}) for i in range(64)]
    tokens, out = choose(logits, rows)
    assert not out.failed.any()
    np.testing.assert_array_equal(tokens, logits.argmax(1))


def test_b037_a_greedy_row_with_banned_neighbours_changes_nobody():
    logits = normal(4, 1000)
    sampled = [RowState({"temperature": 1.0, "seed": i, "want_logprobs": True, "num_top": 3}) for i in range(3)]
    before, _ = choose(logits[1:], sampled)
    greedy = RowState(bias=dict.fromkeys(range(300), -100.0) | dict.fromkeys(range(300, 600), -np.inf))
    after, out = choose(logits, [greedy, *sampled])
    np.testing.assert_array_equal(after[1:], before)
    assert after[0] >= 600
    assert np.isfinite(out.logprobs).all()
    assert np.isfinite(out.top_logprobs).all()


@pytest.mark.parametrize("values", [{"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}])
def test_b038_the_narrowest_filters_are_greedy(values):
    logits = normal(50, 777)
    tokens, _ = choose(logits, [RowState({"temperature": 1.5, "seed": i} | values) for i in range(50)])
    np.testing.assert_array_equal(tokens, logits.argmax(1))


@pytest.mark.parametrize("top_k", [0, -1, -2, 777, 10**9])
def test_b038_top_k_of_nothing_or_everything_filters_nothing(top_k):
    logits = normal(50, 777)
    plain = [RowState({"temperature": 1.0, "seed": i}) for i in range(50)]
    wide = [RowState({"temperature": 1.0, "seed": i, "top_k": top_k}) for i in range(50)]
    np.testing.assert_array_equal(choose(logits, wide)[0], choose(logits, plain)[0])


def test_b045_a_row_does_not_depend_on_batch_order_or_threads():
    logits = normal(32, 4999)
    rows = [
        RowState(
            {
                "temperature": 0.6,
                "seed": i,
                "output_pos": 3 * i,
                "top_p": 0.9 if i % 2 else 1.0,
                "want_logprobs": i % 3 == 0,
                "num_top": 4,
            }
        )
        for i in range(32)
    ]
    results = []
    before = crew.num_threads()
    for num_threads in (1, 2):
        crew.set_num_threads(num_threads)
        order = np.random.default_rng(num_threads).permutation(32)
        tokens, out = choose(logits[order], [rows[i] for i in order])
        back = np.argsort(order)
        results.append((tokens[back], out.logprobs[back], out.top_token_ids[back], out.top_logprobs[back]))
    crew.set_num_threads(before)
    alone = [choose(logits[i : i + 1], [rows[i]]) for i in range(32)]
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
    assert [int(tokens[0]) for tokens, _ in alone] == results[0][0].tolist()
    assert [float(out.logprobs[0]) for _, out in alone] == results[0][1].tolist()


def test_b005_padded_ids_are_never_chosen():
    logits = normal(40, 100)
    logits[:, 90:] = np.nan
    logits[::2, 90:] = 1e30
    rows = [
        RowState({"temperature": float(i % 2), "seed": i, "want_logprobs": True, "num_top": 100}, bias={95: 100.0})
        for i in range(40)
    ]
    tokens, out = choose(logits, rows, num_valid=90)
    assert not out.failed.any()
    assert tokens.max() < 90
    assert out.top_token_ids.max() < 90
    np.testing.assert_allclose(np.exp(out.top_logprobs[:, :90]).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 500, 998])
def test_a_row_with_a_logit_that_is_not_finite_fails_alone(poison, where):
    logits = normal(3, 999)
    rows = [RowState({"temperature": 1.0, "seed": i, "want_logprobs": True}) for i in range(3)]
    before, _ = choose(logits, rows)
    logits[1, where] = poison
    after, out = choose(logits, rows)
    assert out.failed.tolist() == [False, True, False]
    assert after[[0, 2]].tolist() == before[[0, 2]].tolist()


def test_a_row_with_everything_banned_fails_alone():
    logits = normal(2, 8)
    _, out = choose(
        logits, [RowState({"ban_end": True, "temperature": 1.0}, end_ids=tuple(range(8))), RowState({"temperature": 1.0})]
    )
    assert out.failed.tolist() == [True, False]


def test_greedy_ties_go_to_the_lowest_id():
    logits = np.full((1, 1000), -3.0, np.float32)
    logits[0, [401, 402, 900]] = 2.0
    assert choose(logits, [RowState()])[0][0] == 401


@pytest.mark.parametrize("num_valid", [0, 9])
def test_a_wrong_vocabulary_is_refused(num_valid):
    with pytest.raises(ValueError, match="valid"):
        choose(normal(1, 8), [RowState()], num_valid=num_valid)


def test_no_rows_are_fine():
    tokens, out = choose(np.zeros((0, 8), np.float32), [])
    assert tokens.shape == (0,)
    assert out.top_token_ids.shape == (0, 0)
