"""Kernels written for tests of the emulator: text in a file beside the tests, arguments (in, out, wrong) or (in, out)."""

import re
from functools import cache
from pathlib import Path

import numpy as np

import kernels.cuda
from kernels.cuda.spec import Array, Kernel, Scalar
from kernels.emulator.device import EmulatedDevice

HERE = Path(__file__).parent
HEADERS = ("common.cuh", "tensor_core.cuh")


KERNEL = re.compile(r"^KERNEL\((\w+)\)", re.MULTILINE)
PARAMETERS = {"checks": "const float *in, float *out, int wrong"}


def written(stem):
    """The file as it stands."""
    return (HERE / f"{stem}.cu").read_text()


@cache
def text(stem):
    """The file behind the headers that real kernels use."""
    head = rf'extern "C" __global__ void \1({PARAMETERS.get(stem, "const u32 *in, u32 *out")})'
    ours = [(Path(kernels.cuda.__file__).parent / name).read_text() for name in HEADERS]
    lines = [line for part in ours for line in part.splitlines() if not line.startswith(("#include", "#pragma once"))]
    return "\n".join([*lines, f'#line 1 "{stem}.cu"', KERNEL.sub(head, written(stem))])


def device(**options):
    """An emulator that compiles the files beside the tests."""
    return EmulatedDevice(source=text, **options)


def kernel(stem, name, *, shared_bytes=0, block=64):
    """One of them."""
    kind = "float32" if stem == "checks" else "uint32"
    args = (Array("in", kind), Array("out", kind, "out"), *([Scalar("wrong", "int32")] if stem == "checks" else []))
    return Kernel(stem, name, args, (), block, shared_bytes=shared_bytes)


def names(stem):
    """Every kernel of a file."""
    return KERNEL.findall(written(stem))


def ascending(count=64):
    return np.arange(1, count + 1, dtype=np.float32)
