"""Gemma 3 against transformers around its window's edge: one ragged batch, chunks, a prefix hit; bits as alone (B071)."""

import numpy as np
import pytest
import torch

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from tests.support import tiny_models
from tests.support.batches import Driver

W = tiny_models.GEMMA3_WINDOW
LENGTHS = (W - 1, W, W + 1, 2 * W)
TOLERANCE = 1e-4
ROWS = [np.random.default_rng(length).integers(0, tiny_models.VOCAB_SIZE, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(our backend, logits of transformers after each row's last token)."""
    model = tiny_models.make(tiny_models.gemma3_config())
    folder = tiny_models.save(model, tmp_path_factory.mktemp("gemma3") / "tiny")
    backend = CpuBackend(ExecutorSettings(model=str(folder), precision="f32", num_blocks=64, num_threads=1))
    with torch.inference_mode():
        theirs = [model(torch.tensor([row]), use_cache=False).logits[0, -1].numpy() for row in ROWS]
    return backend, np.stack(theirs)


def last_logits(backend, driver, rows) -> np.ndarray:
    """Logits after the last token fed of each (sequence, count); those tokens are then computed."""
    batch = driver.batch(rows)
    with torch.inference_mode():
        hidden = backend._decoder.hidden(batch, cache=backend._cache)
        logits = backend._decoder.logits(hidden[batch.query_start[1:] - 1])
    for sequence, count in rows:
        sequence.computed += count
    return logits


@pytest.mark.parametrize("chunk", [1000, 16, 1, 23])
def test_ragged_batches_around_the_window_edge_equal_transformers(pair, chunk):
    backend, theirs = pair
    driver = Driver(backend)
    rows = [driver.add(row) for row in ROWS]
    last: dict[int, np.ndarray] = {}
    while pending := [row for row in rows if row.pending]:
        logits = last_logits(backend, driver, [(row, min(chunk, row.pending)) for row in pending])
        last.update(zip(map(id, pending), logits, strict=True))
    ours = np.stack([last[id(row)] for row in rows])
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)
    alone = [last_logits(backend, Driver(backend), [(row, row.pending)])[0] for row in map(Driver(backend).add, ROWS)]
    np.testing.assert_array_equal(ours, np.stack(alone))


def test_a_prefix_hit_on_either_side_of_the_window_equals_transformers(pair):
    backend, theirs = pair
    driver = Driver(backend)
    first = [driver.add(row) for row in ROWS]
    whole = last_logits(backend, driver, [(row, row.pending) for row in first])
    for cached in (16, 48):
        hits = [(row, driver.add(row.tokens, shared=row, cached=cached)) for row in first if len(row.tokens) > cached]
        logits = last_logits(backend, driver, [(hit, hit.pending) for _, hit in hits])
        rows = [first.index(row) for row, _ in hits]
        np.testing.assert_array_equal(logits, whole[rows])
        np.testing.assert_allclose(logits, theirs[rows], atol=TOLERANCE, rtol=TOLERANCE)


def test_a_token_sees_w_keys_and_the_layer_that_sees_all_sees_more(tmp_path):
    """Changing the token W back changes nothing in a model whose one layer slides; W - 1 back it does."""
    for kind, sees_more in (("sliding_attention", False), ("full_attention", True)):
        model = tiny_models.make(tiny_models.gemma3_config(num_hidden_layers=1, layer_types=[kind]))
        folder = tiny_models.save(model, tmp_path / kind)
        backend = CpuBackend(ExecutorSettings(model=str(folder), precision="f32", num_blocks=64, num_threads=1))
        seen = []
        for back in (None, W - 1, W):
            tokens = list(ROWS[-1])
            if back is not None:
                tokens[-1 - back] ^= 1
            driver = Driver(backend)
            seen.append(last_logits(backend, driver, [(driver.add(tokens), len(tokens))])[0])
        assert not np.array_equal(seen[0], seen[1])
        assert np.array_equal(seen[0], seen[2]) != sees_more
