"""Logging set-up of a service process: one line per event, key=value, prompts never logged."""

import logging
import sys


def configure(service: str, *, level: str = "INFO") -> None:
    """Sets up the root logger of this process. Called once, by a service's `__main__`."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format=f"%(asctime)s %(levelname).1s {service} %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
