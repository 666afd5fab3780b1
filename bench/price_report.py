"""The price as a table and as JSON."""

import json
from collections.abc import Sequence

from rich.table import Table

from bench.price_arms import ARMS, PriceArm
from bench.price_config import PriceSettings
from bench.price_figures import PriceRun, copies_verdict, price_lines, ratios, spread_of
from bench.provenance import Provenance
from bench.report import NA


def table_of(runs: Sequence[PriceRun], *, provenance: Provenance, row_copies: int) -> Table:
    """One row for each number of rows and arm. Medians (least .. most)."""
    table = Table(title=f"The price of a layout ({provenance.tag()})", title_justify="left")
    table.add_column("rows", justify="right")
    table.add_column("arm")
    for name in ("tokens/s", "decode tokens/s", "rows/decode step", "ms/full step", "copies/step", "copies/steady step", "over A"):
        table.add_column(name, justify="right")
    table.add_column("copies in steady steps")
    for num_rows in sorted({run.num_rows for run in runs}):
        for arm in ARMS:
            mine = [run for run in runs if run.arm == arm.letter and run.num_rows == num_rows]
            if mine:
                table.add_row(str(num_rows), f"{arm.letter} {arm.name}", *_cells(runs, mine, arm=arm, row_copies=row_copies))
        table.add_section()
    return table


def _cells(runs: Sequence[PriceRun], mine: Sequence[PriceRun], *, arm: PriceArm, row_copies: int) -> list[str]:
    steps = [run.steps for run in mine]
    columns = (
        ([run.tokens_per_s for run in mine], 1),
        ([one.decode_tokens_per_s for one in steps], 1),
        ([one.decode_rows for one in steps], 1),
        ([run.full_step_ms for run in mine], 1),
        ([one.copies_per_step if row_copies else None for one in steps], 0),
        ([one.steady_copies if row_copies else None for one in steps], 0),
    )
    texts = [_text(values, digits=digits) for values, digits in columns]
    ratio = ratios(runs, arm=arm.letter, num_rows=mine[0].num_rows)
    return [*texts, ratio.text(3) if ratio else NA, copies_verdict(steps[-1], layout=arm.layout, row_copies=row_copies)]


def _text(values: Sequence[float | None], *, digits: int) -> str:
    spread = spread_of(values)
    return NA if spread is None else spread.text(digits) if spread.low != spread.high else f"{spread.median:.{digits}f}"


def json_of(runs: Sequence[PriceRun], *, provenance: Provenance, wanted: PriceSettings, row_copies: int) -> str:
    """Everything: settings, provenance, ratios in words, every run."""
    told = wanted.model_dump(mode="json", exclude={"json_file"})
    about = {"provenance": provenance.as_dict(), "settings": told, "row_copies": row_copies}
    lines = price_lines(runs, tag=provenance.tag())
    return json.dumps({**about, "price": lines, "runs": [run.as_dict() for run in runs]}, indent=2) + "\n"
