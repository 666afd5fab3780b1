"""The identity of a model: SHA-256 over the bytes of the files that decide its tokens."""

import hashlib
from collections.abc import Sequence
from pathlib import Path


def digest_files(files: Sequence[Path]) -> str:
    """Hex digest over name and content of each file in the order given; where they lie does not matter."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        total.update(len(path.name.encode()).to_bytes(4, "big") + path.name.encode() + content)
    return total.hexdigest()
