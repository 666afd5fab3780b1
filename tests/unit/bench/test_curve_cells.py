"""What the arms of the curve are and what their workers ask for. Rows E5 to E8 of domain.md."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.curve_cells import ARMS, Cell, Lengths, cells_of, lengths_of, requests_of
from bench.curve_config import CurveSettings, shrunk
from bench.curve_measure import _house
from bench.curve_preflight import limits_broken
from bench.memory import FAKE

WORDS = range(1000, 1100)
PROMPTS = st.lists(st.integers(1, 4096), min_size=2, max_size=9).map(tuple)


def test_e6_arms_differ_in_rule_and_lengths_and_in_nothing_else(tmp_path) -> None:
    """Read off what the services are told, not off the arm's name."""
    wanted = CurveSettings()
    told = {arm.letter: _house(Cell(arm, 8), wanted, tmp_path).environ() for arm in ARMS}

    def differing(one: str, other: str) -> set[str]:
        return {name for name in told[one] if told[one][name] != told[other][name]}

    blocks, rule = "DRUMLINE_EXECUTOR_NUM_BLOCKS", "DRUMLINE_SCHEDULER_ADMISSION"
    assert differing("A", "C") == differing("B", "D") == {rule}
    assert differing("A", "B") == differing("C", "D") == {blocks}, "longer rows get the memory that they need"
    assert all(one["DRUMLINE_SCHEDULER_ENABLE_PREFIX_CACHING"] == "false" for one in told.values())
    assert [(arm.letter, arm.admission, arm.mixed) for arm in ARMS] == [
        ("A", "bucketed", False),
        ("B", "bucketed", True),
        ("C", "ragged", False),
        ("D", "ragged", True),
    ]


def test_e1_four_arms_at_each_number_of_workers_another_one_first_each_time() -> None:
    cells = cells_of(CurveSettings())
    assert len(cells) == len(set(cells)) == 20
    assert [cell.arm.letter for cell in cells[:8]] == ["A", "B", "C", "D", "B", "C", "D", "A"]
    assert {cell.batch for cell in cells} == {1, 8, 32, 64, 128}


def test_e5_defaults() -> None:
    wanted = CurveSettings()
    assert (wanted.max_num_seqs, wanted.warm_up_s, wanted.steady_s, wanted.seed) == (256, 20, 45, 1000)


def test_e8_no_cell_is_bound_by_max_num_seqs() -> None:
    assert list(limits_broken(CurveSettings(), FAKE)) == []
    assert "would bound 300 workers" in next(limits_broken(CurveSettings(batch=(1, 300)), FAKE))


@settings(deadline=None, max_examples=50)
@given(PROMPTS, st.integers(1, 200), st.integers(0, 200), st.integers(0, 2**32))
def test_e7_uniform_and_mixed_arms_are_matched_in_tokens(prompts: tuple[int, ...], low: int, width: int, seed: int) -> None:
    """Round by round: every prompt length once, outputs exactly the uniform arm's, prompts but for the mean's rounding."""
    mixed, uniform = (Lengths(prompts, low, low + width, mixed=mix) for mix in (True, False))
    size = len(prompts)
    for asked in [list(islice(mixed.of_worker(seed), 3 * size))]:
        for first in range(0, 3 * size, size):
            one_round = asked[first : first + size]
            assert sorted(prompt for prompt, _ in one_round) == sorted(prompts)
            assert sum(output for _, output in one_round) == size * uniform.uniform()[1]
            assert all(low <= output <= low + width for _, output in one_round)
    same = list(islice(uniform.of_worker(seed), size))
    assert len(set(same)) == 1
    assert abs(sum(prompt for prompt, _ in same) - sum(prompts)) <= size / 2
    assert max(prompt + output for prompt, output in asked) <= mixed.longest
    assert sum(same[0]) == uniform.longest


def test_e7_workers_differ_and_a_run_can_be_repeated() -> None:
    lengths = lengths_of(ARMS[1], CurveSettings())
    one, again, other = (list(islice(requests_of(lengths, WORDS, seed=seed), 5)) for seed in (1000, 1000, 1001))
    assert one == again
    assert one != other
    assert len({request.prompt[:16] for request in (*one, *other)}) == 10, "no prefix is shared"


def test_the_shipped_mixed_lengths_meet_the_uniform_one_within_a_percent() -> None:
    prompts = CurveSettings().prompt_tokens
    assert Lengths(prompts, 64, 128, mixed=False).uniform()[0] * len(prompts) == pytest.approx(sum(prompts), rel=0.01)


def test_smoke_is_two_cells_of_both_rules() -> None:
    assert [cell.name for cell in cells_of(shrunk(CurveSettings(smoke=True)))] == ["B-3", "D-3"]
