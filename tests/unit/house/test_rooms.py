"""The house rules that a linter does not know."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("gateway", "scheduler_svc", "executor_svc", "kernels", "launcher", "bench", "proto/drumline")
TORCH_FREE = (
    "gateway.service",
    "scheduler_svc.service",
    "scheduler_svc.core.scheduler",
    "executor_svc.service",
    "launcher.__main__",
)


def sources() -> list[Path]:
    return [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py")) if "_pb2" not in p.name]


@pytest.mark.parametrize("module", TORCH_FREE)
def test_torch_free_room_imports_without_gpu_libraries(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = sys.modules['cupy'] = sys.modules['numba'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr


SLOW_IMPORTS = {
    "launcher.serve": ("torch", "numba", "grpc", "httpx", "fastapi", "tokenizers"),
    "scheduler_svc.__main__": ("torch", "numba", "tokenizers", "httpx", "fastapi"),
    "gateway.__main__": ("torch", "numba", "transformers", "httpx"),
    "executor_svc.__main__": ("torch", "numba", "tokenizers", "transformers", "httpx"),
    "executor_svc.backends.cpu": ("torch", "scipy", "transformers", "fastapi", "httpx"),
}
"""What the parts of `drumline serve` must not import at start: each takes tenths of seconds, torch several seconds."""


@pytest.mark.parametrize("module", SLOW_IMPORTS)
def test_a_start_imports_nothing_slow_that_it_does_not_need(module: str) -> None:
    code = f"import sys, {module}; print(*({{*{SLOW_IMPORTS[module]}}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


FORBIDDEN_CALLS = {"eval", "exec", "pickle.load", "pickle.loads", "torch.load", "yaml.load", "marshal.loads", "numba.cuda"}


def test_no_call_that_executes_data() -> None:
    found = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.func)}")
            if isinstance(node, ast.Import | ast.ImportFrom) and "pickle" in ast.unparse(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    assert not found


def test_no_wait_that_loses_a_cancellation() -> None:
    """Python 3.11's `asyncio.wait_for` forgets that it was cancelled when what it waits for ends just then, and a stop that
    cancelled it waits for ever (a launcher did). `asyncio.timeout` does not."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("wait_for")
    ]
    assert not found


def test_no_assert_as_a_check() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert not found


def test_hand_written_files_are_one_idea() -> None:
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) > 300}
    assert not long


def test_source_roots_are_not_packages() -> None:
    assert not (ROOT / "proto" / "__init__.py").exists()
    assert not (ROOT / "docker" / "__init__.py").exists()
