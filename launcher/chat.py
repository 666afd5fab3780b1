"""`drumline chat`: one question, or a conversation in the terminal."""

import sys
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console

from launcher.client import Api, ApiError

_HELP: Final = "An empty line is skipped; /clear forgets the conversation; /quit or Ctrl-D leaves; Ctrl-C stops an answer."


def ask(api: Api, question: str, *, console: Console, system: str = "", **options: Any) -> None:
    """Prints the answer to one question as it comes. Raises ApiError."""
    _say(api.chat([*_opening(system), _message("user", question)], **options), console)


def converse(api: Api, *, console: Console, system: str = "", **options: Any) -> None:
    """Reads lines and answers them until the end of input; each answer is part of the next question's context."""
    console.print(f"[bold]{options.get('model', '')}[/]  [dim]{_HELP}[/]")
    messages = _opening(system)
    for line in _lines(console):
        if line == "/clear":
            messages = _opening(system)
            continue
        messages.append(_message("user", line))
        try:
            messages.append(_message("assistant", _say(api.chat(messages, **options), console)))
        except ApiError as error:
            messages.pop()
            console.print(f"[red]{error}[/]", highlight=False)


def _say(pieces: Iterable[str], console: Console) -> str:
    """Prints pieces as they come; the text so far when Ctrl-C stops it."""
    said: list[str] = []
    try:
        for piece in pieces:
            said.append(piece)
            # Model text is data: no markup, no highlighting, no wrapping of our own.
            console.out(piece, end="", highlight=False)
    except KeyboardInterrupt:
        console.print(" [dim](stopped)[/]", end="")
    console.print()
    return "".join(said)


def _lines(console: Console) -> Iterable[str]:
    while True:
        try:
            line = console.input("[bold cyan]> [/]").strip() if sys.stdin.isatty() else _piped()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line == "/quit":
            return
        if line:
            yield line


def _piped() -> str:
    """The next line of a pipe. Raises EOFError at its end."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()


def _opening(system: str) -> list[dict[str, str]]:
    return [_message("system", system)] if system else []


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
