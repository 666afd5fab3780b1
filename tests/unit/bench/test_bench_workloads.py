"""The load that bench sends, and what it makes of the answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.client import Streamed
from bench.measure import gaps_of, percentile
from bench.server import Cost, Idle
from bench.workloads import SHAPES, quickened, requests_of

WORDS = range(1000, 1200)


@pytest.mark.parametrize("name", SHAPES)
def test_lengths_are_exact_and_within_their_range(name: str) -> None:
    shape = SHAPES[name]
    streams = requests_of(shape, WORDS, seed=1, repetition=0)
    assert len(streams) == shape.num_streams
    for request in (request for stream in streams for request in stream):
        assert shape.prompt_tokens[0] <= len(request.prompt) <= shape.prompt_tokens[1]
        assert shape.output_tokens[0] <= request.num_output_tokens <= shape.output_tokens[1]
        assert set(request.prompt) <= set(WORDS)


@given(st.integers(0, 2**32), st.integers(0, 50))
def test_repetitions_differ_in_words_and_never_in_lengths(seed: int, repetition: int) -> None:
    one, other = (requests_of(SHAPES["W4"], WORDS, seed=seed, repetition=r) for r in (repetition, repetition + 1))
    assert [(len(r.prompt), r.num_output_tokens) for [r] in one] == [(len(r.prompt), r.num_output_tokens) for [r] in other]
    assert not {r.prompt[:16] for [r] in one} & {r.prompt[:16] for [r] in other}


def test_the_same_seed_sends_the_same() -> None:
    assert requests_of(SHAPES["W4"], WORDS, seed=3, repetition=2) == requests_of(SHAPES["W4"], WORDS, seed=3, repetition=2)


def test_warm_has_the_prefix_of_cold_and_its_own_tails() -> None:
    cold, warm = (requests_of(SHAPES[name], WORDS, seed=5, repetition=0) for name in ("W6c", "W6w"))
    prefixes = {r.prompt[:512] for stream in (*cold, *warm) for r in stream}
    assert len(prefixes) == 1
    assert len({r.prompt[512:] for stream in (*cold, *warm) for r in stream}) == 64


@pytest.mark.parametrize("name", SHAPES)
def test_quick_is_small_and_still_consistent(name: str) -> None:
    small = quickened(SHAPES[name])
    streams = requests_of(small, WORDS, seed=0, repetition=0)
    assert sum(r.num_output_tokens for stream in streams for r in stream) <= 4 * 32
    assert all(r.prompt and r.num_output_tokens for stream in streams for r in stream)


def test_latencies_of_one_answer() -> None:
    answer = Streamed(sent_s=10.0, event_s=[10.5, 10.75, 11.75])
    assert answer.ttft_s == 0.5
    assert answer.itl_s == [0.25, 1.0]
    assert gaps_of([Streamed(sent_s=0.0, event_s=[1.0])]) == [0.0]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_lie_within_the_values(values: list[float]) -> None:
    low, high = percentile(values, 50), percentile(values, 95)
    assert min(values) - 1e-6 <= low <= high + 1e-6 <= max(values) + 1e-5


def test_idle_is_na_when_nothing_could_run() -> None:
    assert Idle(1.0, 10.0).share_since(Idle(0.5, 5.0)) == pytest.approx(0.1)
    assert Idle(1.0, 10.0).share_since(Idle(1.0, 10.0)) is None
    assert Idle().share_since(Idle()) is None


def test_others_are_what_is_neither_server_nor_client() -> None:
    cost = Cost(wall_s=10.0, busy_s=12.0, cpu_s={"gateway": 1.0, "executor": 8.0}, rss_bytes={}, idle_share=None)
    assert cost.others_share(client_s=3.0) == 0.0
    assert cost.others_share(client_s=1.0) > 0.0
