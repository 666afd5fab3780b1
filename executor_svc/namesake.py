"""Hugging Face publishes a package that is called `kernels` too, and `transformers` installs it from 5.25 on (decision 0021)."""

import importlib.util
from pathlib import Path

from drumline.errors import Unavailable


def check_kernels() -> None:
    """Raises Unavailable unless `import kernels` means Drumline's. Looks for a file of ours beside it; imports nothing."""
    found = importlib.util.find_spec("kernels")
    folders = list(found.submodule_search_locations or ()) if found else []
    if any((Path(folder) / "rotated_weights.py").is_file() for folder in folders):
        return
    raise Unavailable(
        "the 'kernels' that Python finds is not Drumline's: Hugging Face's has the same name, and transformers 5.25 and later"
        " installs it. Give Drumline a virtual environment of its own, or run: pip uninstall kernels"
        if found
        else "the package 'kernels' is missing: install Drumline again, whole"
    )
