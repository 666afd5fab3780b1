"""What the doors to recordings share: exit statuses, and a progress bar that only a terminal sees."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from drumline.errors import DrumlineError

UNREADABLE: Final = 2
PIPE_WIDTH: Final = 200


class Door:
    """Runs a typer app as `main(argv) -> int`: errors of ours are one line and status 2, never a traceback."""

    def __init__(self, app: typer.Typer) -> None:
        self._app = app

    def open(self, argv: list[str]) -> int:
        """The exit status."""
        try:
            self._app(args=argv, prog_name=self._app.info.name)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
        except DrumlineError as error:
            Console(stderr=True).print(f"drumline: {error.message}", style="red", highlight=False, markup=False, soft_wrap=True)
            return UNREADABLE
        return 0


def wide_console() -> Console:
    """Standard output; wide where no terminal says how wide it is, so that a pipe gets whole lines."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


@contextmanager
def progress_bar(total: int, name: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; call the yielded function with the number done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)
