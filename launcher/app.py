"""The commands of `drumline` that talk to a running server, and its --help."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from drumline.version import SOFTWARE_VERSION
from launcher import chat as chat_room
from launcher import status as status_room
from launcher.client import DEFAULT_URL, Api, ApiError
from launcher.rooms import ROOMS

app = typer.Typer(
    name="drumline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A language-model serving system whose scheduler is a service of its own.",
)
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


def main() -> None:
    """Runs a command of this module. Those of `rooms` are listed in the help, but `launcher.__main__` has opened them before."""
    for name, (_, summary) in ROOMS.items():
        app.command(name, help=summary)(_shut)
    app(prog_name="drumline")


def _shut() -> None:
    """Stands for a room in the help; never called."""
