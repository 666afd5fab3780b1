"""The inbox between the scheduler's reader and a request's task."""

import pytest

from drumline.errors import Cancelled, DeadlineExceeded, Unavailable
from drumline.limits import STREAM_BUFFER_BYTES
from gateway.live import LiveRequest
from gateway.sequences import Delta, TokenLogprob


def new_live(num: int = 2) -> tuple[LiveRequest, list[int]]:
    withdrawn: list[int] = []
    return LiveRequest([10 + i for i in range(num)], withdraw=withdrawn.extend), withdrawn


async def test_news_merge_while_nobody_reads() -> None:
    live, _ = new_live()
    live.push(Delta(0, [1], num_cached_tokens=4))
    live.push(Delta(1, [5]))
    live.push(Delta(0, [2], finish_reason="stop"))
    assert await live.take() == [Delta(0, [1, 2], num_cached_tokens=4, finish_reason="stop"), Delta(1, [5])]


async def test_errors_come_after_the_news_before_them_and_stay() -> None:
    live, withdrawn = new_live()
    live.push(Delta(0, [1]))
    live.fail(Unavailable("gone"))
    live.fail(DeadlineExceeded("later"))
    live.push(Delta(1, [1]))
    assert await live.take() == [Delta(0, [1])]
    for _ in range(2):
        with pytest.raises(Unavailable):
            await live.take()
    assert withdrawn == [10, 11]


async def test_b057_withdrawn_sequences_take_no_news_and_are_withdrawn_once() -> None:
    live, withdrawn = new_live()
    live.push(Delta(0, [1]))
    live.withdraw(0)
    live.withdraw(0)
    live.push(Delta(0, [2]))
    live.push(Delta(1, [3], finish_reason="length"))
    assert await live.take() == [Delta(1, [3], finish_reason="length")]
    live.close()
    live.close()
    assert withdrawn == [10]


async def test_b089_a_blocked_reader_holds_a_bounded_amount() -> None:
    live, withdrawn = new_live(1)
    live.blocked = True
    scored = [TokenLogprob(1, -1.0, ((1, -1.0),) * 20)]
    size = 0
    while not withdrawn:
        delta = Delta(0, [1], list(scored))
        size += delta.approximate_bytes()
        live.push(delta)
        assert size <= STREAM_BUFFER_BYTES
    await live.take()
    with pytest.raises(Cancelled):
        await live.take()


async def test_a_reader_that_only_waits_for_others_is_not_cut() -> None:
    live, withdrawn = new_live(1)
    for _ in range(20_000):
        live.push(Delta(0, [1]))
    assert not withdrawn
