"""Log-probabilities beside sampled and given tokens: of the raw distribution, against torch; a row that fails, fails alone."""

import numpy as np
import torch

from kernels.cpu.logprobs import token_logprobs
from kernels.reference import logprobs as logprobs_reference
from tests.support.sampling import RowState, choose


def normal(*shape, scale=3.0):
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(np.float32)


def test_logprobs_are_those_of_the_raw_distribution():
    logits = normal(5, 1003)
    logits[4] = -50000.0
    logits[4, 3] = 50000.0
    rows = [
        RowState({"want_logprobs": True, "num_top": i, "repetition_penalty": 2.0}, output=(1,), bias={i: 1000.0, 4: 1e6})
        for i in range(5)
    ]
    tokens, out = choose(logits, rows)
    assert tokens.tolist() == [4] * 5
    for row in range(5):
        expected = np.maximum(logprobs_reference.log_softmax(logits[row]), -1e4)
        np.testing.assert_allclose(out.logprobs[row], expected[4], rtol=1e-6, atol=2e-6)
        ids = logprobs_reference.top_tokens(logits[row], count=row)
        assert out.top_token_ids[row].tolist() == [*ids, *([-1] * (4 - row))]
        np.testing.assert_allclose(out.top_logprobs[row, :row], expected[ids], rtol=1e-6, atol=2e-6)


def test_token_logprobs_equal_torch():
    logits = normal(9, 2001)
    tokens = np.arange(9, dtype=np.int32) * 100
    out = token_logprobs(logits, token_ids_S=tokens, num_top_S=np.full(9, 3, np.int32), num_valid=2001)
    theirs = torch.log_softmax(torch.from_numpy(logits), -1)
    np.testing.assert_allclose(out.logprobs, theirs[torch.arange(9), torch.from_numpy(tokens).long()].numpy(), rtol=0, atol=4e-6)
    np.testing.assert_array_equal(out.top_token_ids, theirs.topk(3).indices.numpy())


def test_token_logprobs_fail_by_row():
    logits = normal(3, 20)
    logits[0, 5] = np.nan
    out = token_logprobs(logits, token_ids_S=np.array([1, 20, 2], np.int32), num_top_S=np.zeros(3, np.int32), num_valid=20)
    assert out.failed.tolist() == [True, True, False]
