"""The promise of `--batch-invariant` on the real model: a row's logits have the same bits alone, in any batch and in any chunks."""

import json

import numpy as np
import pytest
import torch

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from tests.support.batches import Driver
from tests.support.parity import FIXTURE

CASES = [case["prompt_ids"] + case["tokens"] for case in json.loads(FIXTURE.read_text())]
ROWS = [CASES[index % len(CASES)][: 24 + 5 * (index % 9)] for index in range(32)]
"""Token ids of rows that differ in length, so that every step of a batch is ragged."""


@pytest.fixture(scope="module", params=["int8", "int8-groups", "f32"])
def backend(request):
    settings = ExecutorSettings(precision=request.param, batch_invariant=True, max_model_len=1024, num_blocks=256)
    backend = CpuBackend(settings)
    assert backend.info.batch_invariant
    yield backend
    backend.close()


def logits_of(backend, indexes: range, *, chunk: int) -> np.ndarray:
    """u32 [rows, vocabulary]: the bits of the logits behind each row's last token, the rows fed together, `chunk` tokens a step."""
    driver, found = Driver(backend, seed=chunk), {}
    left = {index: driver.add(ROWS[index]) for index in indexes}
    while left:
        rows = [(sequence, min(chunk, sequence.pending)) for sequence in left.values()]
        batch = driver.batch(rows)
        with torch.inference_mode():
            hidden = backend._decoder.hidden(batch, cache=backend._cache)
            logits = backend._decoder.logits(hidden[batch.query_start[1:] - 1]).copy()
        for place, (index, (sequence, count)) in enumerate(zip(list(left), rows, strict=True)):
            sequence.computed += count
            if not sequence.pending:
                found[index] = logits[place]
                del left[index]
    return np.array([found[index] for index in indexes]).view(np.uint32)


@pytest.fixture(scope="module")
def alone(backend) -> np.ndarray:
    return np.concatenate([logits_of(backend, range(index, index + 1), chunk=1000) for index in range(len(ROWS))])


@pytest.mark.parametrize("size", [2, 7, 32])
@pytest.mark.parametrize("chunk", [1000, 16, 5])
def test_logits_are_those_of_the_row_alone(backend, alone, size, chunk):
    first = len(ROWS) - size  # not the first ones: a row's place in the batch is another than alone
    assert np.array_equal(logits_of(backend, range(first, len(ROWS)), chunk=chunk), alone[first:])


def test_different_rows_have_different_logits(alone):
    """So that equality above says something."""
    assert len({row.tobytes() for row in alone}) == len({tuple(row) for row in ROWS})
