"""The sampler over any row: what it chooses is allowed, it equals the reference, and no batch changes it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import sample as reference
from tests.support.sampling import Columns, RowState, choose

VOCABULARY = 70


@st.composite
def row_states(draw):
    token = st.integers(0, VOCABULARY - 1)
    values = {
        "temperature": draw(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.0])),
        "top_k": draw(st.integers(-1, VOCABULARY + 5)),
        "top_p": draw(st.sampled_from([0.0, 0.2, 0.55, 0.93, 1.0])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 0.013, 0.4])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.25, 0.8])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.5, -1.5])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.25])),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "output_pos": draw(st.integers(0, 2**31 - 1)),
        "ban_end": draw(st.booleans()),
    }
    tokens = st.lists(token, max_size=12).map(tuple)
    bias = draw(st.dictionaries(token, st.sampled_from([-100.0, -1.5, 2.25, 100.0]), max_size=4))
    ends = draw(st.lists(token, max_size=3, unique=True).map(tuple))
    return RowState(values, prompt=draw(tokens), output=draw(tokens), bias=bias, end_ids=ends)


def logits_of(seed, num_rows):
    return (np.random.default_rng(seed).standard_normal((num_rows, VOCABULARY)) * 2).astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(st.lists(row_states(), min_size=1, max_size=5), st.integers(0, 1000))
def test_any_choice_is_allowed_and_equals_the_reference(rows, seed):
    logits, columns = logits_of(seed, len(rows)), Columns(rows)
    tokens, out = choose(logits, rows)
    assert not out.failed.any()
    for row, state in enumerate(rows):
        assert not (state.values["ban_end"] and tokens[row] in state.end_ids)
        assert tokens[row] == reference.sample_row(logits[row], columns=columns, row=row)
        assert tokens[row] == choose(logits[row : row + 1], [state])[0][0]
