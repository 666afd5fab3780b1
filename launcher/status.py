"""`drumline status`: who waits, runs and is scheduled, and how each executor is. What is not known reads NA and why, never 0."""

import json
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from launcher.client import Api

Status = Mapping[str, Any]
"""`GetStatusResponse` as JSON; field names as in scheduler.proto. A field that is absent is not known."""


def show(api: Api, *, console: Console, as_json: bool = False) -> None:
    """Prints the status once. Raises ApiError."""
    status = api.get("/status")
    if as_json:
        console.print_json(json.dumps(status))
    else:
        console.print(render(status))


def watch(api: Api, *, console: Console, interval_s: float) -> None:
    """Redraws the status until Ctrl-C. Raises ApiError."""
    before: Status | None = None
    before_at = 0.0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                status, now = api.get("/status"), time.monotonic()
                live.update(render(status, before=before, elapsed_s=now - before_at), refresh=True)
                before, before_at = status, now
                time.sleep(interval_s)
    except KeyboardInterrupt:
        return


def render(status: Status, *, before: Status | None = None, elapsed_s: float = 0.0) -> RenderableType:
    """The whole picture; with an earlier status, tokens per second too."""
    return Group(_totals(status, before=before, elapsed_s=elapsed_s), _executors(status))


def _totals(status: Status, *, before: Status | None, elapsed_s: float) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = {
        "waiting": f"{known(status, 'num_waiting')} ({known(status, 'num_waiting_tokens')} tokens)",
        "running": known(status, "num_running"),
        "scheduled": known(status, "num_scheduled"),
        "tokens/s": rate(status, before=before, elapsed_s=elapsed_s),
        "generated": f"{known(status, 'num_generated_tokens')} tokens of {known(status, 'num_prompt_tokens')} prompt tokens",
        "prefix hits": share(status, "prefix_hits", "prefix_queries", absent="no prompt was looked up yet"),
        "preemptions": known(status, "num_preemptions"),
        "admission": str(status.get("admission") or na("")),
    }
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/]", value)
    if status.get("draining"):
        table.add_row("[bold yellow]draining[/]", "nothing new is taken")
    return table


def _executors(status: Status) -> RenderableType:
    executors = status.get("executors") or []
    if not executors:
        return "[bold]executors[/] NA (none is known to the scheduler)"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("executor", "state", "resident", "scheduled", "in flight", "KV used", "KV cached", "idle"):
        table.add_column(column, justify="left" if column in ("executor", "state") else "right", no_wrap=column == "executor")
    notes = []
    for one in executors:
        away = "" if one.get("num_blocks") else "not connected"
        table.add_row(
            str(one.get("address", "")),
            str(one.get("state", "")),
            *(known(one, field, absent=away) for field in ("num_resident", "num_scheduled", "plans_in_flight")),
            *(share(one, field, "num_blocks", absent="not connected") for field in ("num_blocks_used", "num_blocks_cached")),
            percent(one.get("idle_fraction"), absent="no step yet"),
        )
        stored = f", keys and values in {one['kv_cache_dtype']}" if one.get("kv_cache_dtype") else ""
        device = f"{one.get('device')}, {one.get('precision')}{stored}" if one.get("device") else na(away)
        layout = one.get("layout") or na(away)
        notes.append(f"[dim]{one.get('address', '')}: {device}; ragged rows {ragged(one, absent=away)}; layout {layout}[/]")
    return Group("", table, *notes)


def na(reason: str) -> str:
    """Not known, and why."""
    return f"NA ({reason or 'not reported'})"


def known(values: Status, field: str, *, absent: str = "") -> str:
    """A number, or NA: a field that is missing, or whose owner is absent, is not zero."""
    return na(absent) if absent or field not in values else f"{int(values[field]):,}"


def percent(value: float | None, *, absent: str) -> str:
    """0..1 as a percentage."""
    return na(absent) if value is None else f"{100 * float(value):.1f} %"


def share(values: Status, part: str, whole: str, *, absent: str) -> str:
    """`part` of `whole`; NA while there is no whole."""
    total = int(values.get(whole) or 0)
    return percent(int(values.get(part) or 0) / total, absent="") if total else na(absent)


def rate(status: Status, *, before: Status | None, elapsed_s: float) -> str:
    """Generated tokens per second since the earlier status."""
    if before is None or elapsed_s <= 0:
        return na("one sample; --watch takes more")
    made = int(status.get("num_generated_tokens", 0)) - int(before.get("num_generated_tokens", 0))
    return f"{made / elapsed_s:,.1f}" if made >= 0 else na("the scheduler was restarted")


def ragged(executor: Status, *, absent: str) -> str:
    """The grant and its reason."""
    if absent:
        return na(absent)
    return f"{'granted' if executor.get('ragged_granted') else 'refused'}: {executor.get('ragged_reason') or 'no reason given'}"
