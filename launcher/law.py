"""`drumline law`: the bucket shattering law, counted in the plans of the real scheduler core. Needs no device and no model."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from drumline.errors import InvalidRequest
from launcher.door import Door, wide_console
from scheduler_svc.law import render, tables

app = typer.Typer(name="drumline law", add_completion=False, pretty_exceptions_enable=False)


@app.command()
def law(
    plot: Annotated[Path | None, typer.Option(help="Draw it into this file (PNG, SVG or PDF).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show how many of B admitted sequences run per step when their caches have D lengths, refused and granted."""
    if plot is not None:
        _check(plot)
    cases, (refused, granted), edges = tables.law(), tables.curve(), tables.boundary()
    console = wide_console()
    if as_json:
        typer.echo(render.as_json(cases, refused, granted, edges))
    else:
        for table in (render.law_table(cases), render.curve_table(refused, granted), render.boundary_table(edges)):
            console.print(table)
            console.print()
    if plot is not None:
        _draw(plot)
        typer.echo(f"drawn: {plot}", err=True)


def _check(path: Path) -> None:
    """Whether the picture can be drawn, before seconds are spent on it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidRequest("--plot needs matplotlib: pip install 'drumline[bench]'", param="plot")
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidRequest(f"--plot {path}: the name must end in .png, .svg or .pdf", param="plot")
    if not path.parent.is_dir():
        raise InvalidRequest(f"--plot {path}: there is no folder {path.parent}", param="plot")


def _draw(path: Path) -> None:
    from scheduler_svc.law.plot import draw

    try:
        draw(path)
    except OSError as error:
        raise InvalidRequest(f"--plot {path}: {error.strerror}", param="plot") from None


def main(argv: list[str]) -> int:
    """`drumline law ARGV`; the exit status."""
    return Door(app).open(argv)
