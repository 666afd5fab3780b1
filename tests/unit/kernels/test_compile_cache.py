"""The compile cache: private, tied to the sources, found again, and somewhere else when its place cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
from kernels.cpu import crew, jit
from kernels.cpu.gated_mul import _all_rows, silu_mul
crew.set_num_threads(1)
silu_mul(np.zeros((1, 8), np.float32), out_TI=np.zeros((1, 4), np.float32))
print(jit.cache_folder(), sum(_all_rows.stats.cache_hits.values()))
"""


def compile_in(folder, **environment):
    variables = os.environ | {"NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[3])} | environment
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, check=True, timeout=200)
    where, hits = result.stdout.split()
    return Path(where), int(hits)


def test_a_second_process_compiles_nothing(tmp_path):
    where, hits = compile_in(tmp_path)
    assert where.parent == tmp_path
    assert where.stat().st_mode & 0o077 == 0
    assert hits == 0
    assert compile_in(tmp_path) == (where, 1)


def test_a_place_that_cannot_be_written_is_passed_over(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    where, _ = compile_in(blocked, XDG_CACHE_HOME=str(blocked), TMPDIR=str(tmp_path))
    assert where.is_relative_to(tmp_path)
    assert where.is_dir()


def test_a_folder_that_others_may_write_is_passed_over(tmp_path):
    from kernels.cpu.jit import _writable

    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert not _writable(shared)
    assert _writable(tmp_path / "mine")


@pytest.mark.parametrize(
    "module", ["kernels.cpu.sample", "kernels.cpu.paged_attention", "kernels.cpu.rope_kv_write", "kernels.reference.sample"]
)
def test_kernels_import_no_torch(module):
    code = f"import sys; sys.modules['torch'] = sys.modules['grpc'] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, cwd=Path(__file__).parents[3])
