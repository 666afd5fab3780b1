"""The `drumline` command: thin doors to the rooms. Only the room that is opened is imported."""

import importlib
import sys
from typing import Any

from launcher.rooms import ROOMS


def main() -> None:
    """Entry point of the console script."""
    if len(sys.argv) > 1 and sys.argv[1] in ROOMS:
        sys.exit(_room(sys.argv[1]).main(sys.argv[2:]))
    importlib.import_module("launcher.app").main()


def _room(name: str) -> Any:
    """The module behind a door. One whose extra was not installed ends the command with a line that says how to get it."""
    try:
        return importlib.import_module(ROOMS[name][0])
    except ModuleNotFoundError as error:
        sys.exit(f"drumline {name}: {error.name} is not installed (pip install -e '.[gateway,torch,bench]' in the checkout)")


if __name__ == "__main__":
    main()
