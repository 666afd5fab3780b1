"""The law's tables for people (rich) and for machines (JSON). Each figure says where it comes from."""

import dataclasses
import json
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from scheduler_svc.core.coalesce import COALESCE_PAYBACK_STEPS
from scheduler_svc.law.tables import CURVE, FIRST_LENGTH, GAP, NUM_STEPS, ROWS_PER_LENGTH, Case, Edge

PROVENANCE = "sim"
"""No device took part: the scheduler is real, the clock and the executor are not."""


def law_table(cases: Sequence[Case]) -> Group:
    """B sequences at D lengths: rows over all steps and in the last, which is the effective batch."""
    title = f"Bucket shattering law: {NUM_STEPS} steps, cache lengths {FIRST_LENGTH} + i * {GAP}"
    names = ("B", "D", "refused: rows", f"(B/D)*{NUM_STEPS}", "effective", "granted: rows", f"B*{NUM_STEPS}", "effective", "from")
    table = _table(names)
    for case in cases:
        size, num = case.num_sequences, case.num_lengths
        without, given = case.refused, case.granted
        figures = [size, num, without.num_rows, size // num * NUM_STEPS, without.last_rows]
        figures += [given.num_rows, size * NUM_STEPS, given.last_rows]
        table.add_row(*map(str, figures), PROVENANCE)
    return Group(Text(title, "bold"), table)


def curve_table(refused: Sequence[int], granted: Sequence[int]) -> Group:
    """What admitting more buys once every sequence has a length of its own."""
    table = _table(("admitted", "refused", "granted", "from"))
    for size, without, given in zip(CURVE, refused, granted, strict=True):
        table.add_row(str(size), str(without), str(given), PROVENANCE)
    return Group(Text("Effective batch with as many lengths as sequences", "bold"), table)


def boundary_table(edges: Sequence[Edge]) -> Group:
    """Where the override that lets the shortest catch up stops."""
    title = f"Refused, {ROWS_PER_LENGTH} sequences a length, {GAP} tokens apart: does the batch become whole?"
    table = _table(("D", f"(D-1)*{GAP}", "payback", "override", "whole after", "from"))
    for edge in edges:
        taken = "taken" if edge.whole_after is not None else "refused"
        whole = f"{edge.whole_after} steps" if edge.whole_after is not None else "not in sight"
        table.add_row(str(edge.num_lengths), str(edge.waited), str(COALESCE_PAYBACK_STEPS), taken, whole, PROVENANCE)
    return Group(Text(title, "bold"), table)


def _table(names: Sequence[str]) -> Table:
    table = Table(box=None)
    for name in names:
        table.add_column(name, justify="right")
    return table


def as_json(cases: Sequence[Case], refused: Sequence[int], granted: Sequence[int], edges: Sequence[Edge]) -> str:
    """Everything, tagged."""
    return json.dumps(
        {
            "provenance": PROVENANCE,
            "num_steps": NUM_STEPS,
            "gap": GAP,
            "law": [dataclasses.asdict(case) for case in cases],
            "curve": {"admitted": list(CURVE), "refused": list(refused), "granted": list(granted)},
            "boundary": [dataclasses.asdict(edge) for edge in edges],
        },
        indent=2,
    )
