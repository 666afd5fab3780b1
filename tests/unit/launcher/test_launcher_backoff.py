"""When a dead service is restarted, and when the launcher gives up."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.supervisor import Backoff


def test_a_long_life_is_restarted_at_once() -> None:
    assert Backoff().after(5.0) == 0.0


def test_short_lives_wait_longer_and_longer_and_then_it_ends() -> None:
    backoff = Backoff(max_short_lives=7)
    assert [backoff.after(0.1) for _ in range(8)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, None]


@given(st.lists(st.floats(0, 100), max_size=60))
def test_it_gives_up_only_after_short_lives_in_a_row(lives: list[float]) -> None:
    backoff = Backoff()
    row = 0
    for life in lives:
        row = 0 if life >= backoff.healthy_s else row + 1
        delay = backoff.after(life)
        assert (delay is None) == (row > backoff.max_short_lives)
        assert delay is None or 0 <= delay <= backoff.max_delay_s
