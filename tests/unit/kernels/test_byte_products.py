"""Products of bytes: every form gives exact sums, the right one is chosen, and the code for processors that are not here has it."""

import itertools
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import numba
import numpy as np
import pytest
from numba import types

from kernels.cpu import byte_products
from kernels.cpu import integer_lanes as ints
from kernels.cpu.byte_products import Avx2, Portable, Vnni, Vnni512, choose, is_exact, products_of
from kernels.cpu.jit import processor_has

ROOT = Path(__file__).parents[3]
CAPABLE = {
    "vnni512": processor_has("avx512vnni", "avx512vl", "avx512bw"),
    "vnni": processor_has("avx512vnni", "avx512vl") or processor_has("avxvnni"),
    "avx2": processor_has("avx2"),
}
FORMS = [
    pytest.param(form, id=form.name, marks=pytest.mark.skipif(not CAPABLE.get(form.name, True), reason=f"no {form.name} here"))
    for form in (Vnni512(), Vnni(), Avx2(), Portable())
]


class Saturating(Avx2):
    """Planted: what `pmaddubsw` would do with weights that are not made unsigned."""

    def add_signed(self, builder, total, codes, signed):
        pairs = ints.call(builder, "llvm.x86.avx2.pmadd.ub.sw", ints.OF_8.shorts, codes, signed)
        return builder.add(total, self.small_sum(builder, pairs))


class Forgetful(Portable):
    """Planted: a total that does not begin at what was there."""

    def add_small(self, builder, total, codes, signed):
        return super().add_small(builder, ints.every(ints.OF_8.ints, 1), codes, signed)


def kernel(form):
    products = products_of(form)

    @numba.njit
    def run(codes, weights, signed, small, large):
        products(codes, weights, signed, small, large)

    return run


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_exact(form):
    assert is_exact(form, kernel(form))


@pytest.mark.parametrize("wrong", [Saturating(), Forgetful()], ids=["saturating", "forgetful"])
@pytest.mark.skipif(not CAPABLE["avx2"], reason="no AVX2 here")
def test_the_check_finds_a_form_that_is_not(wrong):
    assert not is_exact(wrong, kernel(wrong))


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_group_of_the_largest_products_fits(form):
    """What the docstring of `byte_products` promises, added up as `group_tile` does it: 8 quads of each output."""

    vectors = form.vectors
    outputs = vectors.outputs

    @byte_products.intrinsic
    def group(typingctx, codes, weights, signed, out):
        def codegen(context, builder, signature, args):
            def at(index, to):
                zero = context.get_constant(types.intp, 0)
                return byte_products.pointer(context, builder, signature.args[index], args[index], zero, to=to)

            few, some, x = (builder.load(at(index, vectors.bytes), align=1) for index in range(3))
            small, large = ints.every(form.small, 0), ints.every(vectors.ints, 0)
            for _ in range(8):
                small, large = form.add_small(builder, small, few, x), form.add_signed(builder, large, some, x)
            builder.store(form.small_sum(builder, small), at(3, vectors.ints), align=4)
            builder.store(large, builder.gep(at(3, vectors.ints), [ints.I32(1)]), align=4)
            return context.get_dummy_value()

        return types.void(codes, weights, signed, out), codegen

    @numba.njit
    def run(codes, weights, signed, out):
        group(codes, weights, signed, out)

    for sign in (1, -1):
        out, size = np.zeros((2, outputs), np.int32), 4 * outputs
        x = np.full(size, 127 * sign, np.int8)
        run(np.full(size, 15, np.uint8), np.full(size, -127, np.int8), x, out)
        assert out.tolist() == [[sign * 32 * 15 * 127] * outputs, [-sign * 32 * 127 * 127] * outputs]


@pytest.mark.parametrize("form", FORMS)
def test_products_of_bytes_are_exact_over_a_long_row(form):
    """What rotated layers add up: 65,536 inputs, all at an end of their range, raised weights and their correction included."""
    vectors, quads = form.vectors, 1 << 14
    outputs = vectors.outputs

    @byte_products.intrinsic
    def row(typingctx, weights, signed, out):
        def codegen(context, builder, signature, args):
            def at(index, to):
                zero = context.get_constant(types.intp, 0)
                return byte_products.pointer(context, builder, signature.args[index], args[index], zero, to=to)

            some, x = (builder.load(at(index, vectors.bytes), align=1) for index in range(2))
            total = builder.load(at(2, vectors.ints), align=4)
            builder.store(form.add_bytes(builder, total, some, x), at(2, vectors.ints), align=4)
            return context.get_dummy_value()

        return types.void(weights, signed, out), codegen

    @numba.njit
    def run(weights, signed, out):
        for _ in range(quads):
            row(weights, signed, out)

    for weight, x in itertools.product((127, -127), (127, -127)):
        out = np.zeros(outputs, np.int32)
        run(np.full(4 * outputs, weight + form.raised, np.int16).astype(np.uint8), np.full(4 * outputs, x, np.int8), out)
        assert (out.astype(np.int64) - form.raised * 4 * quads * x == 4 * quads * weight * x).all()


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ({"avx512vnni", "avx512vl", "avx512bw", "avx2"}, "vnni512"),
        ({"avx512vnni", "avx512vl", "avx2"}, "vnni"),
        ({"avxvnni", "avx2"}, "vnni"),
        ({"avx512vnni", "avx2"}, "avx2"),
        ({"avx2"}, "avx2"),
        ({"neon"}, "portable"),
    ],
)
def test_the_best_form_that_the_processor_has(features, name):
    assert choose(lambda *names: set(names) <= features, exact=lambda form: True).name == name


def test_vnni_that_computes_wrong_is_left_with_a_warning(monkeypatch, tmp_path, caplog):
    """Kernels go to another folder then: numba would load what was compiled with VNNI before."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert choose(lambda *names: True, exact=lambda form: False).name == "avx2"
    assert "go on with AVX2" in caplog.text
    assert Path(numba.config.CACHE_DIR) == tmp_path / "avx2"


def test_features_are_those_that_numba_compiles_for(monkeypatch):
    monkeypatch.setattr(numba.config, "CPU_FEATURES", "+avx2,-avxvnni,+fma")
    assert processor_has("avx2", "fma")
    assert not processor_has("avxvnni")
    assert not processor_has("avx2", "avx512vnni")


COMPILE = """
import json, sys
from kernels.cpu import byte_products
byte_products.choose.__kwdefaults__["exact"] = lambda form: True  # nothing may run: it is code of another processor
from numba import njit, types
from kernels.cpu import rotated_tile
from kernels.cpu.group_tile import FORM, MOST_ROWS, tile_of_4_bits, tile_of_8_bits
array = {name: types.Array(getattr(types, name), 1, "C") for name in ("uint8", "uint16")}
x, scales, out = types.Array(types.int8, 2, "C"), types.Array(types.float32, 3, "C"), types.Array(types.float32, 2, "C")
signature = (array["uint8"], array["uint16"], x, scales, types.intp, types.intp, types.intp, out, types.intp, types.intp)
def kernel(tile, rows):
    @njit(nogil=True, error_model="numpy")
    def run(codes, weights, x, scales, panel, first, groups, out, place, stride):
        tile(rows, codes, weights, x, scales, panel, first, groups, out, place, stride)
    run.compile(signature)
    return run.inspect_asm(signature)
def rotated():
    rows, lines = rotated_tile.MOST_ROWS, rotated_tile.GROUP_LINES // 4
    @njit(nogil=True, error_model="numpy")
    def run(codes, weights, x, scales, panel, first, groups, out, place, stride):
        rotated_tile.rotated_tile(rows, codes, weights, x, scales, panel, first, groups, out, place, stride, panel, lines)
    run.compile(signature)
    return run.inspect_asm(signature)
bits = {"4": kernel(tile_of_4_bits, MOST_ROWS[4]), "8": kernel(tile_of_8_bits, MOST_ROWS[8])}
json.dump({"form": FORM.name, "rotated": rotated(), **bits}, sys.stdout)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(processor, its features) -> the form chosen and the assembly of the tallest tiles, compiled and not run."""

    def compile_for(processor: str, features: str) -> dict[str, str]:
        cache = str(tmp_path_factory.mktemp("cache"))
        told = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
        result = subprocess.run(
            [sys.executable, "-c", COMPILE], env=os.environ | told, capture_output=True, text=True, timeout=200, check=True
        )
        return json.loads(result.stdout)

    return compile_for


AVX2 = "+avx,+avx2,+fma,+f16c,+sse4.2,+ssse3,+sse4.1"
AVX512 = f"{AVX2},+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512vnni"


def body(assembly: str) -> list[str]:
    """The longest stretch without a label or a jump: a group's worth of the loop."""
    return max(re.split(r"^\.?[\w$.]+:|^\s+j\w+\s.*$", assembly, flags=re.MULTILINE), key=len).splitlines()


@pytest.mark.skipif(not llvmlite.binding.get_process_triple().startswith("x86_64"), reason="assembly of x86")
@pytest.mark.parametrize(
    ("processor", "features"),
    [("znver4", AVX512), ("sapphirerapids", AVX512), ("alderlake", f"{AVX2},+avxvnni")],
)
def test_tiles_for_processors_with_vnni(compiled, processor, features):
    """Sums of 8 quads by the rows of the tallest tile, one instruction each, and nothing of the loop's waits in memory."""
    assembly = compiled(processor, features)
    wide = "avx512bw" in features
    assert assembly["form"] == ("vnni512" if wide else "vnni")
    for bits in ("4", "8"):
        inside = body(assembly[bits])
        assert sum("vpdpbusd" in line for line in inside) == (64 if wide and bits == "4" else 32), (processor, bits)
        assert not any("vpmaddubsw" in line or "vpmaddwd" in line for line in inside)
        spilled = [line for line in inside if re.search(r"\(%rsp\)|\(%rbp\)", line) and re.search("%[yz]mm", line)]
        assert spilled == []
    inside = body(assembly["rotated"])
    assert sum("vpdpbusd" in line for line in inside) == (128 if wide else 32)
    assert not any(re.search(r"\(%rsp\)|\(%rbp\)", line) and re.search("%[yz]mm", line) for line in inside)


@pytest.mark.skipif(not llvmlite.binding.get_process_triple().startswith("x86_64"), reason="assembly of x86")
def test_tiles_for_a_processor_with_avx2_only(compiled):
    assembly = compiled("znver3", AVX2)
    assert assembly["form"] == "avx2"
    assert not any("vpdpbusd" in assembly[bits] for bits in ("4", "8", "rotated"))
    assert sum("vpmaddubsw" in line for line in body(assembly["4"])) == 32
