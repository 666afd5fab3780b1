"""Every kernel that a case launches, compiled by NVRTC: parameters as they are sent, nothing spilled."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import kernels.cuda
from kernels.cuda.nvrtc import build
from kernels.cuda.spec import Scalar, pack
from kernels.emulator.build import KERNEL
from kernels.emulator.device import EmulatedDevice
from kernels.proof.catalogue import STEMS

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
PTX = {"int32": "u32", "uint32": "u32", "float32": "f32", "int64": "u64", "uint64": "u64", "uint8": "u8", "bool": "u8"}


@cache
def sent_by(stem):
    """Every configuration that the cases of a stem launch -> the arguments of one launch as they are sent."""
    seen = {}

    class Noting(EmulatedDevice):
        def launch(self, kernel, grid, args):
            seen[kernel] = pack(kernel, args)
            super().launch(kernel, grid, args)

    for case in STEMS[stem]():
        case.launch(Noting(), case.arrays())
    return seen


def kernels_of(stem):
    return sorted(sent_by(stem), key=repr)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("stem", STEMS)
def test_compiles_with_the_parameters_that_are_sent_and_without_spills(stem, arch):
    for kernel in kernels_of(stem):
        binary = build(kernel, arch=arch)
        assert binary.params == tuple(PTX[a.dtype] if isinstance(a, Scalar) else "u64" for a in kernel.args), kernel
        assert (binary.stack_bytes, binary.spill_bytes) == (0, 0), kernel
        assert binary.registers * kernel.block <= 65536, kernel
        assert binary.shared_bytes + kernel.shared_bytes <= 227 << 10, kernel


def test_every_function_of_every_source_is_launched_by_a_case():
    folder = Path(kernels.cuda.__file__).parent
    written = {(path.stem, name) for path in folder.glob("*.cu") for name in KERNEL.findall(path.read_text())}
    launched = {(kernel.source, kernel.name) for stem in STEMS for kernel in kernels_of(stem)}
    assert written == launched


@pytest.mark.parametrize("stem", STEMS)
def test_what_is_sent_has_the_widths_that_the_binary_reads(stem):
    """CuPy sends a NumPy scalar at its own width and anything else at one of its choice."""
    for kernel, sent in sent_by(stem).items():
        assert all(isinstance(value, np.generic) for value in sent)
        read = [int(kind[1:]) // 8 for kind in build(kernel, arch="sm_90").params]
        assert [value.itemsize for value in sent] == read, kernel
