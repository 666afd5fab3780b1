"""What the curve says. The number is tokens/s(mixed) / tokens/s(uniform) against the number of workers.

If rows of different lengths cannot share a step, it falls as workers are added: shattering. If it stays flat, the hypothesis is
dead, which is a result. The ragged arms are the control: what falls there too is the price of mixed lengths, not of shattering.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.curve_cells import Cell
from bench.curve_row import Row
from bench.report import NA

Ratios = Mapping[int, float]
"""Workers -> ratio, of those cells in which both are known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word`: falls, flat, rises, unclear or NA. `text`: for people."""

    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Compared:
    """Two rates. `ratio` None = NA, `why` says why."""

    ratio: float | None
    why: str = ""


class Rates:
    """The rows of one run by arm and number of workers."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.cell.arm.letter, row.cell.batch): row for row in rows}
        self.batches = sorted({row.cell.batch for row in rows})

    def over(self, arm: str, base: str, *, batch: int, name: str = "tok_s") -> Compared:
        """One arm's figure over another's."""
        found = []
        for letter in (arm, base):
            row = self._rows.get((letter, batch))
            if row is None:
                return Compared(None, f"cell {letter}-{batch} was not run")
            if (value := row.get(name)) is None:
                return Compared(None, f"cell {letter}-{batch}: {row.why(name)}")
            found.append(value)
        return Compared(found[0] / found[1]) if found[1] > 0 else Compared(None, f"cell {base}-{batch} has a rate of 0")

    def curve(self, arm: str, base: str) -> dict[int, Compared]:
        """For every number of workers."""
        return {batch: self.over(arm, base, batch=batch) for batch in self.batches}


def known(curve: Mapping[int, Compared]) -> dict[int, float]:
    """Without the NAs."""
    return {batch: one.ratio for batch, one in curve.items() if one.ratio is not None}


def verdict_of(curve: Ratios, *, control: Ratios, tolerance: float) -> Verdict:
    """From the ratios of the bucketed arms and those of the ragged ones."""
    if len(curve) < 2:
        return Verdict(NA, "NA: the ratio is known at fewer than two numbers of workers")
    few, many = min(curve), max(curve)
    change = curve[many] / curve[few]
    place = f"mixed/uniform goes from {curve[few]:.2f} at {few} to {curve[many]:.2f} at {many} workers"
    if change < 1 - tolerance:
        return _fallen(place, change, few=few, many=many, control=control, tolerance=tolerance)
    if change > 1 + tolerance:
        return Verdict("rises", f"rises: {place}; mixed lengths gain with workers, which is not shattering")
    if max(abs(ratio / curve[few] - 1) for ratio in curve.values()) > tolerance:
        return Verdict("unclear", f"unclear: {place}, but leaves that level in between by more than {tolerance:.0%}")
    return Verdict("flat", f"flat, hypothesis dead: {place}")


def _fallen(place: str, change: float, *, few: int, many: int, control: Ratios, tolerance: float) -> Verdict:
    if few not in control or many not in control:
        return Verdict("falls", f"falls: shattering: {place} (NA: no ragged control at both ends)")
    control_change = control[many] / control[few]
    beside = f"the ragged control goes from {control[few]:.2f} to {control[many]:.2f}"
    if change / control_change < 1 - tolerance:
        return Verdict("falls", f"falls: shattering: {place}; {beside}")
    return Verdict("unclear", f"falls, but so does the control: {place}; {beside}: mixed lengths cost this much without shattering")


def worth(rates: Rates) -> str:
    """What the ragged rule is worth on mixed lengths, at the most workers."""
    batch = rates.batches[-1]
    compared = rates.over("D", "B", batch=batch)
    number = f"NA ({compared.why})" if compared.ratio is None else f"{compared.ratio:.2f}"
    return f"tok_s(D)/tok_s(B) at {batch} workers: {number}"


def agreement(rates: Rates, *, tolerance: float) -> list[str]:
    """One worker alone must not notice the rule: A and C, B and D agree. A and B need not: their requests differ."""
    lines = []
    for arm, base in (("C", "A"), ("D", "B")):
        compared = rates.over(arm, base, batch=1)
        if compared.ratio is None:
            lines.append(f"{arm}/{base} at 1 worker: NA ({compared.why})")
            continue
        agrees = abs(compared.ratio - 1) <= tolerance
        word = "agree" if agrees else "DO NOT AGREE: this run shows more than the rule, or nothing"
        lines.append(f"{arm}/{base} at 1 worker: {compared.ratio:.3f}, they {word} (tolerance {tolerance:.0%})")
    return lines


def matching(rates: Rates) -> list[str]:
    """Prompt tokens for each output token, mixed over uniform, as they were in the windows. 1 = matched."""
    lines = []
    for arm, base in (("B", "A"), ("D", "C")):
        for batch in rates.batches:
            prompts, outputs = (rates.over(arm, base, batch=batch, name=f"{what}_tokens") for what in ("prompt", "output"))
            if prompts.ratio is not None and outputs.ratio:
                lines.append(f"{arm}/{base} at {batch} workers: {prompts.ratio / outputs.ratio:.2f}")
    return lines or [f"{NA} (no pair of cells)"]


def cells_without(rows: Sequence[Row]) -> list[Cell]:
    """Cells whose rate is NA."""
    return [row.cell for row in rows if row.get("tok_s") is None]
