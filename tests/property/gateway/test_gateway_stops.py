"""Stop strings against a naive oracle: the first character at which the whole text ends with a stop string."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.stops import StopMatcher

ABC = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4)


def oracle(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@given(ABC, STOPS, st.lists(st.integers(0, 30), max_size=10))
@settings(max_examples=500, deadline=None)
def test_b007_b008_b009_b010_stops_are_the_oracle_for_every_cut(text: str, stops: list[str], places: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in cut(text, places):
        if matcher.matched is not None:
            break
        shown += matcher.push(piece)
        assert oracle(text, stops)[0].startswith(shown), "a part of a stop string leaked"
    if matcher.matched is None:
        shown += matcher.flush()
    assert (shown, matcher.matched) == oracle(text, stops)


@given(ABC, STOPS)
@settings(max_examples=300, deadline=None)
def test_nothing_is_held_longer_than_it_could_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    if matcher.matched is None:
        held = text[len(shown) :]
        assert any(stop.startswith(held) and stop != held for stop in stops)


@given(ABC, STOPS)
@settings(max_examples=200, deadline=None)
def test_included_stop_is_shown_whole(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops, include_match=True)
    shown = matcher.push(text)
    before, stop = oracle(text, stops)
    if stop is not None:
        assert shown == before + stop


def test_b060_matchers_share_nothing() -> None:
    first, second = StopMatcher(["xy"]), StopMatcher(["xy"])
    assert first.push("x") == ""
    assert second.push("y") == "y"
