"""Whether a model is there at all: asked before torch is loaded, which takes seconds."""

from pathlib import Path

from executor_svc.model.errors import ModelError


def check_place(path: Path) -> None:
    """Raises ModelError unless `path` is a file or a folder."""
    if not path.is_dir() and not path.is_file():
        raise ModelError(f"there is no model file or folder {path.name!r}")
