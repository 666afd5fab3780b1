"""Guesses from a row's own text, against the rule in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.ngram_draft import ngram_draft
from kernels.reference.ngram_draft import ngram_drafts


def i32(values):
    return np.array(values, np.int32)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_it_equals_the_rule(data):
    """Few distinct tokens, so that texts repeat themselves; what lies behind the known tokens is never looked at."""
    shortest = data.draw(st.integers(1, 3))
    lengths = (shortest, data.draw(st.integers(shortest, 5)))
    tokens = i32(data.draw(st.lists(st.lists(st.integers(0, 3), min_size=24, max_size=24), min_size=1, max_size=5)))
    rows = data.draw(st.permutations(range(len(tokens))))
    known = data.draw(st.lists(st.integers(1, 24), min_size=len(rows), max_size=len(rows)))
    most = data.draw(st.lists(st.integers(0, 6), min_size=len(rows), max_size=len(rows)))
    columns = {"slots": i32(rows), "num_known": i32(known), "most": i32(most), "lengths": lengths}
    found, counts = ngram_draft(tokens, **columns)
    expected = ngram_drafts(tokens, **columns)
    assert [row[:count].tolist() for row, count in zip(found, counts, strict=True)] == expected


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([1, 2, 8, 1, 2, 9, 1, 2], [9, 1, 2]),  # the latest place counts
        ([1, 2, 3, 8, 2, 3, 9, 1, 2, 3], [8, 2, 3]),  # but the longest before it
        ([7, 7, 7], [7, 7, 7]),  # it goes on with itself
        ([1, 2, 1, 2, 1], [2, 1, 2]),
        ([1, 2, 3], []),
        ([1], []),
        ([3, 1, 2, 4, 2], []),  # one token alone says nothing
    ],
)
def test_what_it_guesses(text, guess):
    token_ids, counts = ngram_draft(i32([text]), slots=i32([0]), num_known=i32([len(text)]), most=i32([3]), lengths=(2, 4))
    assert token_ids[0, : counts[0]].tolist() == guess


def test_what_does_not_fit_is_refused():
    one = i32([0])
    with pytest.raises(ValueError, match="lengths"):
        ngram_draft(i32([[1]]), slots=one, num_known=one, most=one, lengths=(0, 2))
    with pytest.raises(ValueError, match="most"):
        ngram_draft(i32([[1]]), slots=one, num_known=one, most=i32([1, 2]), lengths=(1, 2))
