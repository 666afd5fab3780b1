"""Paged attention over any ragged batch: near the reference, and the same bits however the batch is cut."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference.paged_attention import paged_attention as reference
from tests.support.paged_batches import paged_batch


@st.composite
def rows(draw):
    context = draw(st.integers(1, 90))
    return context, draw(st.integers(0, context))


@st.composite
def batches(draw):
    num_kv_heads = draw(st.integers(1, 3))
    return paged_batch(
        draw(st.lists(rows(), min_size=1, max_size=6)),
        num_heads=num_kv_heads * draw(st.integers(1, 7)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([8, 16, 36, 64, 96, 128])),
        window=draw(st.sampled_from([0, 0, 1, 13, 16, 40])),
        seed=draw(st.integers(0, 1000)),
        kv_type=draw(st.sampled_from([np.float32, np.float16])),
    )


@settings(max_examples=60, deadline=None)
@given(batches())
def test_any_batch_equals_the_reference(batch):
    np.testing.assert_allclose(batch.run(), reference(batch.q, **batch.arguments()), rtol=0, atol=5e-6)


@settings(max_examples=60, deadline=None)
@given(batches(), st.data())
def test_any_cut_of_a_batch_gives_the_same_bits(batch, data):
    whole = batch.run(tile_tokens=data.draw(st.integers(0, 9)))
    for row in range(batch.context_len.shape[0]):
        start, stop = batch.query_start[row : row + 2]
        cuts = sorted({0, stop - start, *data.draw(st.lists(st.integers(0, stop - start), max_size=3))})
        for first, last in itertools.pairwise(cuts):
            part = batch.part(row, first, last).run(tile_tokens=data.draw(st.integers(0, 9)))
            np.testing.assert_array_equal(part, whole[start + first : start + last])
