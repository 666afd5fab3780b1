"""What the doors to recordings share: exit statuses, and a progress bar that only a terminal sees."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from drumline.errors import DrumlineError

UNREADABLE = 2


class Door:
    """Runs a typer app as `main(argv) -> int`: errors of ours are one line and status 2, never a traceback."""

    def __init__(self, app: typer.Typer) -> None:
        self._app = app

    def open(self, argv: list[str]) -> int:
        """The exit status."""
        try:
            return int(self._app(args=argv, standalone_mode=False) or 0)
        except click.exceptions.ClickException as error:
            error.show()
            return UNREADABLE
        except click.exceptions.Abort:
            return 130
        except DrumlineError as error:
            Console(stderr=True).print(f"drumline: {error.message}", style="red", highlight=False, markup=False, soft_wrap=True)
            return UNREADABLE


@contextmanager
def progress_bar(total: int, name: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; call the yielded function with the number done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)
