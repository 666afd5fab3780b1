"""The `drumline` command: thin doors to the rooms."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.console import Console

from drumline.version import SOFTWARE_VERSION
from launcher import chat as chat_room
from launcher import status as status_room
from launcher.client import DEFAULT_URL, Api, ApiError

app = typer.Typer(
    name="drumline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A language-model serving system whose scheduler is a service of its own.",
)
_ROOMS: Final = {
    "serve": ("launcher.serve", "Start everything: executors, scheduler and gateway."),
    "gateway": ("gateway.__main__", "Run one gateway: HTTP in, tokens to the scheduler."),
    "scheduler": ("scheduler_svc.__main__", "Run one scheduler: decides who runs."),
    "executor": ("executor_svc.__main__", "Run one executor: owns a device and runs plans."),
    "replay": ("launcher.replay", "Replay a recording and name the first difference."),
    "trace": ("launcher.trace", "Show, explain, compare or export a recording."),
    "bench": ("bench.__main__", "Measure a running or a fresh server from outside."),
}
"""Doors that hand everything behind their name to a room's `main(argv) -> int`, whose --help it is, too. Imported when opened."""

Url = Annotated[str, typer.Option("--url", help="The server.")]
ApiKey = Annotated[
    str, typer.Option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="Key of the server, if it wants one.")
]


@app.command()
def chat(
    question: Annotated[str, typer.Argument(help="Asked once; without it a conversation begins.")] = "",
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    model: Annotated[str, typer.Option(help="Name of the model; none = the first one served.")] = "",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, tokens; none = until the model ends.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 = always the likeliest token.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
) -> None:
    """Talk to the model."""
    with _api(url, api_key) as (api, console):
        options = {"model": model or api.model(), "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        if question:
            chat_room.ask(api, question, console=console, system=system, **options)
        else:
            chat_room.converse(api, console=console, system=system, **options)


@app.command()
def status(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    watch: Annotated[float | None, typer.Option(min=0.1, help="Redraw every so many seconds, until Ctrl-C.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show who waits, runs and is scheduled, and each executor's KV use and idle time."""
    with _api(url, api_key) as (api, console):
        if watch:
            status_room.watch(api, console=console, interval_s=watch)
        else:
            status_room.show(api, console=console, as_json=as_json)


@contextmanager
def _api(url: str, api_key: str) -> Iterator[tuple[Api, Console]]:
    """The server and the terminal; a server that is away or says no is one line and status 1."""
    try:
        with Api(url, api_key=api_key) as api:
            yield api, Console()
    except ApiError as error:
        Console(stderr=True).print(f"drumline: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


@app.command()
def version() -> None:
    """Print the release."""
    typer.echo(f"drumline {SOFTWARE_VERSION}")


def _list_rooms() -> None:
    """Names the rooms in `drumline --help`; `main` opens them before typer reads a word, so that theirs stay as they are."""

    def shut() -> None:
        """Never called."""

    for name, (_, summary) in _ROOMS.items():
        app.command(name, help=summary)(shut)


def main() -> None:
    """Entry point of the console script."""
    if len(sys.argv) > 1 and sys.argv[1] in _ROOMS:
        sys.exit(importlib.import_module(_ROOMS[sys.argv[1]][0]).main(sys.argv[2:]))
    _list_rooms()
    app(prog_name="drumline")


if __name__ == "__main__":
    main()
