"""A precision's name means the same bits on every processor: kernels compiled for narrower registers give what these here give."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.jit import processor_has

ROOT = Path(__file__).parents[3]
AVX2 = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2"
DIGEST = """
import hashlib
import numpy as np
from kernels.cpu.attention_step import WIDE
from kernels.cpu.group_tile import FORM
from kernels.cpu.integer_linear import integer_linear, packed, rotated
from kernels.cpu.paged_attention import paged_attention
from kernels.group_weights import rounded
from kernels.layout import cache_shapes

rng = np.random.default_rng(1)
digest = hashlib.sha256()
def random(*shape):
    return rng.standard_normal(shape).astype(np.float32)
def i32(*values):
    return np.array(values, np.int32)
weight = random(70, 96)
for weights in (rotated(weight), rounded(weight)):
    out = np.empty((21, 70), np.float32)
    integer_linear(random(21, 96), weights=packed(weights), out_MN=out)
    digest.update(out.tobytes())
for head_dim, window, kind in ((64, 0, np.float16), (40, 50, np.float16), (96, 0, np.float32)):
    keys, values = (random(*shape).astype(kind) for shape in cache_shapes(40, num_kv_heads=2, head_dim=head_dim))
    q, tables = random(23, 6, head_dim), rng.permutation(40)[:36].reshape(4, 9).astype(np.int32)
    out = np.empty_like(q)
    paged_attention(
        q, k_BKDP=keys, v_BKPD=values, query_start_R=i32(0, 20, 21, 22, 23), context_len_R=i32(90, 137, 7, 64),
        block_tables_RW=tables, scale=0.2, window=window, out_TND=out,
    )
    digest.update(out.tobytes())
print(WIDE, FORM.name, digest.hexdigest())
"""


def bits(**environment: str) -> tuple[str, str]:
    """(how wide attention is and how bytes are multiplied, a digest of everything)."""
    told = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run([sys.executable, "-c", DIGEST], env=told, capture_output=True, text=True, timeout=300, check=True)
    kind, _, digest = done.stdout.strip().rpartition(" ")
    return kind, digest


@pytest.mark.skipif(not processor_has("avx512f", "avx512vnni", "avx512bw", "avx512vl"), reason="no AVX-512 with VNNI here")
def test_avx2_gives_the_bits_of_avx512(tmp_path):
    wide, here = bits()
    narrow, there = bits(NUMBA_CPU_NAME="znver3", NUMBA_CPU_FEATURES=AVX2, NUMBA_CACHE_DIR=str(tmp_path))
    assert (wide, narrow) == ("4 vnni512", "1 avx2")
    assert here == there
