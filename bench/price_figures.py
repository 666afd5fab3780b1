"""From runs to the price: medians, and ratios of runs that stood beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from bench.price_arms import ARMS, BASE
from bench.steps import Summary


@dataclass(frozen=True, slots=True)
class PriceRun:
    """One run of one arm.

    Attributes:
        turn: which repeat it belongs to; runs of one turn have the same prompts.
        tokens_per_s: output tokens over the time from the first byte sent to the last received.
        others_share: of the machine, used by neither server nor client, 0..1.
        full_step_ms: median time of a steady decode step with all rows; None when all never decoded together.
        steps: what the executor counted and timed in it.
    """

    arm: str
    num_rows: int
    turn: int
    tokens_per_s: float
    others_share: float
    full_step_ms: float | None
    steps: Summary

    def rate(self, of: str) -> float | None:
        """More is better: of the `whole` run, of `decode` steps, of `full` steps."""
        if of == "full":
            return None if self.full_step_ms is None else self.num_rows * 1e3 / self.full_step_ms
        return self.steps.decode_tokens_per_s if of == "decode" else self.tokens_per_s

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most."""

    median: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """`median (low .. high)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} .. {self.high:.{digits}f})"


def spread_of(values: Sequence[float | None]) -> Spread | None:
    """None where no value is known."""
    known = [value for value in values if value is not None]
    return Spread(median(known), min(known), max(known)) if known else None


def ratios(runs: Sequence[PriceRun], *, arm: str, num_rows: int, of: str = "whole") -> Spread | None:
    """The arm's rate over that of A, turn by turn; `of` as in `PriceRun.rate`."""
    rates: dict[str, Mapping[int, float | None]] = {
        name: {run.turn: run.rate(of) for run in runs if run.arm == name and run.num_rows == num_rows}
        for name in (arm, BASE.letter)
    }
    pairs = [(rate, rates[BASE.letter].get(turn)) for turn, rate in rates[arm].items()]
    return spread_of([rate / base for rate, base in pairs if rate is not None and base])


def price_lines(runs: Sequence[PriceRun], *, tag: str) -> list[str]:
    """One line for each number of rows and arm beside A."""
    return [
        f"{arm.letter}/{BASE.letter} at {num_rows} rows: {whole} of the whole run, {decode} of decode steps, "
        f"{full} of full ones ({tag})"
        for num_rows in sorted({run.num_rows for run in runs})
        for arm in ARMS
        if arm != BASE
        for whole, decode, full in [
            [_ratio_text(ratios(runs, arm=arm.letter, num_rows=num_rows, of=of)) for of in ("whole", "decode", "full")]
        ]
    ]


def _ratio_text(ratio: Spread | None) -> str:
    if ratio is None:
        return "NA (no pair of runs)"
    if ratio.low < 1 < ratio.high:
        return f"{ratio.text(3)}, no difference shown"
    return ratio.text(3)


def copies_verdict(summary: Summary, *, layout: str, row_copies: int) -> str:
    """Whether the executor copied in steady steps what its layout says: nothing, or 2 x layers for each row of each step."""
    if summary.steady_copies_p50 is None or summary.copies_per_row is None:
        return "NA (no steady step)"
    if not row_copies:
        return "NA (fake: no layers)"
    expected = row_copies if layout == "stripped" else 0
    # a cohort that became too narrow is copied once in 64 steps: that is growth, and shows in the mean only
    held = summary.copies_per_row == expected if layout == "stripped" else summary.steady_copies_p50 == 0
    return f"{'as it must be' if held else 'NOT as it must be'}: {expected} a row"
