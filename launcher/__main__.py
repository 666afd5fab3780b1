"""The `drumline` command: thin doors to the rooms."""

import importlib
from typing import Any, Final

import typer

from drumline.version import SOFTWARE_VERSION

app = typer.Typer(
    name="drumline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A language-model serving system whose scheduler is a service of its own.",
)
# These commands parse their own flags (drumline.settings, argparse): theirs is the --help, too.
_RAW: Final[dict[str, Any]] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}


def _open(module: str, arguments: list[str]) -> None:
    """Runs the `main` of a room's module in this process. Rooms are imported when their door is opened, not before."""
    raise typer.Exit(importlib.import_module(module).main(arguments))


@app.command(**_RAW)
def serve(context: typer.Context) -> None:
    """Start everything: executors, scheduler and gateway."""
    _open("launcher.serve", context.args)


@app.command(**_RAW)
def gateway(context: typer.Context) -> None:
    """Run one gateway: HTTP in, tokens to the scheduler."""
    _open("gateway.__main__", context.args)


@app.command(**_RAW)
def scheduler(context: typer.Context) -> None:
    """Run one scheduler: decides who runs."""
    _open("scheduler_svc.__main__", context.args)


@app.command(**_RAW)
def executor(context: typer.Context) -> None:
    """Run one executor: owns a device and runs plans."""
    _open("executor_svc.__main__", context.args)


@app.command(**_RAW)
def replay(context: typer.Context) -> None:
    """Replay a recording and name the first difference."""
    _open("launcher.replay", context.args)


@app.command(**_RAW)
def trace(context: typer.Context) -> None:
    """Show, explain, compare or export a recording."""
    _open("launcher.trace", context.args)


@app.command(**_RAW)
def bench(context: typer.Context) -> None:
    """Measure a running or a fresh server from outside."""
    _open("bench.__main__", context.args)


@app.command()
def version() -> None:
    """Print the release."""
    typer.echo(f"drumline {SOFTWARE_VERSION}")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
