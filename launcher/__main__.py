"""The `drumline` command: thin doors to the rooms. Only the room that is opened is imported."""

import importlib
import sys

from launcher.rooms import ROOMS


def main() -> None:
    """Entry point of the console script."""
    if len(sys.argv) > 1 and sys.argv[1] in ROOMS:
        sys.exit(importlib.import_module(ROOMS[sys.argv[1]][0]).main(sys.argv[2:]))
    importlib.import_module("launcher.app").main()


if __name__ == "__main__":
    main()
