"""Do the committed stubs equal what the generators make of the .proto files today? Run by `make check`; `make gen` repairs.

Exits with status 1 and the list of stale, missing or left-over stubs.
"""

import filecmp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PATTERNS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def stubs_of(folder: Path) -> set[Path]:
    """Stubs below `folder`, relative to it."""
    return {path.relative_to(folder) for pattern in PATTERNS for path in folder.rglob(pattern)}


def generate(out: Path) -> None:
    """Runs the generators as `make gen` does, into `out`."""
    sources = [str(path.relative_to(PROTO)) for path in sorted(PROTO.rglob("*.proto"))]
    outputs = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    # The mypy plugins are programs beside this interpreter; protoc finds plugins on PATH.
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTO), *outputs, *sources]
    subprocess.run(command, check=True, env=environ, cwd=PROTO, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def drift() -> list[str]:
    """One line for each stub that differs, is missing or has no .proto any more."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate(fresh)
        made, kept = stubs_of(fresh), stubs_of(PROTO)
        lines = [f"missing: proto/{path}" for path in sorted(made - kept)]
        lines += [f"left over: proto/{path}" for path in sorted(kept - made)]
        lines += [f"stale: proto/{p}" for p in sorted(made & kept) if not filecmp.cmp(fresh / p, PROTO / p, shallow=False)]
    return lines


if __name__ == "__main__":
    problems = drift()
    sys.stderr.write("".join(f"{line}\n" for line in problems))
    if problems:
        sys.exit("stubs drifted from the .proto files: run `make gen` and commit the result")
