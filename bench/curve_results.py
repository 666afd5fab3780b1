"""What the curve leaves behind: results.tsv row by row while it runs; results.json, summary.txt and curve.png at its end."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.curve_cells import ARMS
from bench.curve_config import CurveSettings
from bench.curve_row import COLUMNS, Row
from bench.curve_verdict import Compared, Rates, agreement, cells_without, known, matching, verdict_of, worth
from bench.report import NA

TSV: Final = "results.tsv"
JSON: Final = "results.json"
SUMMARY: Final = "summary.txt"
PNG: Final = "curve.png"


def clear(folder: Path) -> None:
    """Removes what an earlier run left, so that a refused run cannot be taken for it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (TSV, JSON, SUMMARY, PNG):
        (folder / name).unlink(missing_ok=True)


class Table:
    """The TSV. Its first line is written with the first row: a run that was refused has no file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TSV
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Writes one row, now."""
        with self._path.open("a", encoding="utf-8") as file:
            if not self.rows:
                file.write("\t".join(COLUMNS) + "\n")
            file.write(row.tsv() + "\n")
        self.rows.append(row)


def summary_of(rows: Sequence[Row], *, wanted: CurveSettings) -> str:
    """The numbers, the verdict, and what they rest on."""
    rates = Rates(rows)
    bucketed, ragged = rates.curve("B", "A"), rates.curve("D", "C")
    verdict = verdict_of(known(bucketed), control=known(ragged), tolerance=wanted.tolerance)
    lines = [
        "tok_s(mixed)/tok_s(uniform) by number of workers",
        *_ratio_lines("bucketed, B/A", bucketed),
        *_ratio_lines("ragged,   D/C", ragged),
        f"verdict: {verdict.text}",
        worth(rates),
        *agreement(rates, tolerance=wanted.tolerance),
        "prompt tokens for each output token in the windows, mixed over uniform (1 = matched)",
        *(f"  {line}" for line in matching(rates)),
        *_grant_lines(rows),
        f"cells without a rate: {', '.join(cell.name for cell in cells_without(rows)) or 'none'}",
        f"provenance: {'; '.join(sorted({row.provenance for row in rows} - {NA})) or NA}",
    ]
    return "\n".join(lines) + "\n"


def _ratio_lines(name: str, curve: dict[int, Compared]) -> list[str]:
    texts = [f"{batch}: {NA if one.ratio is None else format(one.ratio, '.3f')}" for batch, one in curve.items()]
    reasons = sorted({one.why for one in curve.values() if one.why})
    return [f"  {name}  {'  '.join(texts)}", *(f"    {NA}: {reason}" for reason in reasons)]


def _grant_lines(rows: Sequence[Row]) -> list[str]:
    """What each arm's scheduler decided, and whether it said that it could not honour something."""
    lines = []
    for arm in ARMS:
        mine = [row for row in rows if row.cell.arm is arm]
        lines += [f"arm {arm.letter}: {grant}" for grant in sorted({row.grant for row in mine})]
        if mine:
            said = sorted({row.refusal for row in mine} - {""})
            lines.append(f"arm {arm.letter}: lines that say `cannot honour it`: {'; '.join(said) or 'none'}")
    return lines


def json_of(rows: Sequence[Row], *, wanted: CurveSettings) -> str:
    """Settings, every row, the ratios and the verdict."""
    rates = Rates(rows)
    bucketed, ragged = known(rates.curve("B", "A")), known(rates.curve("D", "C"))
    verdict = verdict_of(bucketed, control=ragged, tolerance=wanted.tolerance)
    told = wanted.model_dump(mode="json", exclude={"out", "status_file", "preflight", "model"})
    ratios = {"bucketed": bucketed, "ragged": ragged}
    about = {"settings": told, "ratios": ratios, "verdict": {"word": verdict.word, "text": verdict.text}}
    return json.dumps({**about, "rows": [row.as_dict() for row in rows]}, indent=2) + "\n"
