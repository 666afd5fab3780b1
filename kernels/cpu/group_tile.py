"""The inside of layers in groups: a few rows of integer inputs times one panel of outputs, over all of K.

Integer sums are exact, and the float32 ones follow the groups in order, so a row has the same bits in a tile of any height.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu import byte_products
from kernels.cpu import integer_lanes as ints
from kernels.cpu.jit import intrinsic
from kernels.cpu.lanes import F32, I8, I32, pointer, prefetch_line
from kernels.group_weights import GROUP
from kernels.packed_weights import LINE

FORM = byte_products.chosen()
VECTORS = FORM.vectors
PANEL = VECTORS.outputs
"""Outputs that a tile computes side by side: one for each int32 lane."""
MOST_ROWS = {4: 8 if PANEL == 16 else 4, 8: 4}
"""Rows of the tallest tile by the weights' bits: the sums of all, and the weights that they share, must fit into the registers."""
QUADS = GROUP // 4
QUAD_BYTES = 4 * PANEL
CODE_BYTES_PER_BIT = PANEL * GROUP // 8
AHEAD = 4096
"""How many bytes of 4-bit codes lie between the group in work and the one asked for: the latency of memory, at its full speed."""


class _Tile:
    """Emits one tile. Holds what the steps share: builder, addresses, and a float32 sum for each row."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, *, bits: int) -> None:
        rows, self.codes, self.scales, self.x, self.x_scales, self.out = 0, 1, 2, 3, 4, 8
        self._context, self._builder, self._types = context, builder, signature.args
        self._args, self._bits = args, bits
        self.num_rows = self._types[rows].literal_value
        self.sums = [cgutils.alloca_once(builder, VECTORS.floats) for _ in range(self.num_rows)]
        for total in self.sums:
            builder.store(ints.every(VECTORS.floats, 0.0), total)

    def offset(self, value: int) -> Any:
        """A constant of the type that offsets have."""
        return ir.Constant(self._args[-1].type, value)

    def at(self, array: int, offset: Any, to: Any) -> Any:
        """Address of element `offset` of argument `array`."""
        return pointer(self._context, self._builder, self._types[array], self._args[array], offset, to=to)

    def add_group(self, codes: Any, scales: Any, rows: list[Any], row_scales: list[Any]) -> None:
        """Adds one group of every row; the arguments are where it begins in each array."""
        builder = self._builder
        self._fetch_ahead(codes, scales)
        products = self._four_bits(codes, rows) if self._bits == 4 else self._eight_bits(codes, rows)
        scale = self._scales_at(scales)
        offsets = self._scales_at(builder.add(scales, self.offset(PANEL))) if self._bits == 4 else None
        for row, total in enumerate(self.sums):
            value = builder.load(total)
            x_scale = self.at(self.x_scales, row_scales[row], F32)
            if offsets is not None:
                x_sum = builder.load(builder.gep(x_scale, [self.offset(1)]), align=4)
                value = ints.fma(builder, offsets, ints.splat(builder, VECTORS.floats, x_sum), value)
            factor = ints.splat(builder, VECTORS.floats, builder.load(x_scale, align=4))
            exact = builder.fmul(builder.sitofp(products[row], VECTORS.floats), factor)
            builder.store(ints.fma(builder, exact, scale, value), total)

    def _fetch_ahead(self, codes: Any, scales: Any) -> None:
        """Asks for weights of the panels to come; behind the end that asks for nothing. With few rows memory is what takes time."""
        bits, builder = self._bits, self._builder
        lines = [(self.codes, codes, AHEAD * bits // 4 + LINE * line) for line in range(CODE_BYTES_PER_BIT * bits // LINE)]
        for array, start, ahead in [*lines, (self.scales, scales, AHEAD // 8)]:
            prefetch_line(builder, self.at(array, builder.add(start, self.offset(ahead)), I8))

    def _scales_at(self, place: Any) -> Any:
        """Floats: half precision holds a file's scales exactly, and takes half the memory."""
        halves = self._builder.load(self.at(self.scales, place, VECTORS.halves), align=2)
        return self._builder.fpext(halves, VECTORS.floats)

    def _quad(self, rows: list[Any], row: int, quad: int) -> Any:
        return ints.quad_of_all(self._builder, VECTORS, self.at(self.x, self._builder.add(rows[row], self.offset(4 * quad)), I32))

    def _weights(self, codes: Any, index: int) -> Any:
        address = self.at(self.codes, self._builder.add(codes, self.offset(QUAD_BYTES * index)), VECTORS.bytes)
        return self._builder.load(address, align=1)

    def _four_bits(self, codes: Any, rows: list[Any]) -> list[Any]:
        """Ints for each row."""
        builder, form = self._builder, FORM
        sums: list[Any] = [ints.every(form.small, 0)] * self.num_rows
        for pair in range(QUADS // 2):
            for half, weights in enumerate(ints.halves(builder, VECTORS, self._weights(codes, pair))):
                for row in range(self.num_rows):
                    sums[row] = form.add_small(builder, sums[row], weights, self._quad(rows, row, 2 * pair + half))
        return [form.small_sum(builder, part) for part in sums]

    def _eight_bits(self, codes: Any, rows: list[Any]) -> list[Any]:
        """Ints for each row."""
        builder, form = self._builder, FORM
        sums: list[Any] = [ints.every(VECTORS.ints, 0)] * self.num_rows
        for quad in range(QUADS):
            weights = self._weights(codes, quad)
            for row in range(self.num_rows):
                sums[row] = form.add_signed(builder, sums[row], weights, self._quad(rows, row, quad))
        return sums


def _emitter(bits: int) -> Any:
    """The intrinsic for codes of `bits` bits.

    Its arguments: rows (a constant) at once; the four arrays; the panel, the first row, groups of K; where the sums go: an f32
    array, the flat place of the first row's sums there, and the distance to the next row's.
    """
    code_bytes, scale_floats = CODE_BYTES_PER_BIT * bits, PANEL * (2 if bits == 4 else 1)
    whole = types.intp

    def emit(
        typingctx: Any, rows: Any, codes: Any, scales: Any, x: Any, x_scales: Any, panel: Any, first: Any, groups: Any, out: Any,
        place: Any, stride: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            tile = _Tile(context, builder, signature, args, bits=bits)
            panel, first, groups, _, place, stride = args[5:]
            row_at = [builder.mul(builder.add(first, tile.offset(row)), groups) for row in range(tile.num_rows)]
            with cgutils.for_range(builder, groups) as loop:
                weight_group = builder.add(builder.mul(panel, groups), loop.index)
                row_groups = [builder.add(start, loop.index) for start in row_at]
                tile.add_group(
                    builder.mul(weight_group, tile.offset(code_bytes)),
                    builder.mul(weight_group, tile.offset(scale_floats)),
                    [builder.mul(group, tile.offset(GROUP)) for group in row_groups],
                    [builder.mul(group, tile.offset(2)) for group in row_groups],
                )
            for row, total in enumerate(tile.sums):
                to = tile.at(tile.out, builder.add(place, builder.mul(stride, tile.offset(row))), VECTORS.floats)
                builder.store(builder.load(total), to, align=4)
            return context.get_dummy_value()

        return types.void(rows, codes, scales, x, x_scales, whole, whole, whole, out, whole, whole), codegen

    return intrinsic(emit)


tile_of_4_bits = _emitter(4)
tile_of_8_bits = _emitter(8)
