"""The inside of rotated layers: a few rows of integer inputs times one panel of outputs, over all of K.

One integer sum from end to end, so order and grouping change no bit; then one scale of the row and one of the output.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu import integer_lanes as ints
from kernels.cpu.group_tile import FORM, VECTORS
from kernels.cpu.jit import intrinsic
from kernels.cpu.lanes import F32, I8, I32, pointer, prefetch_line
from kernels.packed_weights import LINE

SIDE = 2 if VECTORS.outputs == 16 else 1
"""Vectors of outputs side by side, which share each input: with fewer, reading inputs takes longer than multiplying them."""
PANEL = SIDE * VECTORS.outputs
"""Outputs that a tile computes side by side."""
MOST_ROWS = 8 if VECTORS.outputs == 16 else 4
"""Rows of the tallest tile: all sums must fit into the registers."""
SUMS = MOST_ROWS * SIDE
"""Sums that a tile works on at once: a row alone adds up several parts of K, for a product takes longer than the next may wait."""
QUADS = 8
"""Quads of a turn of the loop: K is a multiple of 32."""
LINES = 12
"""Place of the argument `lines`."""
GROUP_LINES = 4 * PANEL * QUADS // LINE
"""Cache lines of a panel's weights for 32 inputs."""


class _Tile:
    """Emits one tile. Holds what the steps share: builder, addresses, and int32 sums [parts of K][row][side]."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self._context, self._builder, self._types, self._args = context, builder, signature.args, args
        self.num_rows = self._types[0].literal_value
        self.lines = self._types[LINES].literal_value
        parts = max(1, min(SUMS // (self.num_rows * SIDE), QUADS // 2))
        self._sums = [[[self._zero() for _ in range(SIDE)] for _ in range(self.num_rows)] for _ in range(parts)]

    def _zero(self) -> Any:
        total = cgutils.alloca_once(self._builder, VECTORS.ints)
        self._builder.store(ints.every(VECTORS.ints, 0), total)
        return total

    def offset(self, value: int) -> Any:
        """A constant of the type that offsets have."""
        return ir.Constant(self._args[-2].type, value)

    def at(self, array: int, offset: Any, to: Any) -> Any:
        """Address of element `offset` of argument `array`."""
        return pointer(self._context, self._builder, self._types[array], self._args[array], offset, to=to)

    def add_quads(self, codes: Any, rows: list[Any]) -> None:
        """Adds 32 inputs of every row; the arguments are where they begin in the weights and in the rows' codes."""
        builder = self._builder
        sums = [[[builder.load(total) for total in row] for row in part] for part in self._sums]
        for quad in range(QUADS):
            part, begin = sums[quad % len(sums)], builder.add(codes, self.offset(4 * PANEL * quad))
            weights = [self._vector(begin, side) for side in range(SIDE)]
            for row, start in enumerate(rows):
                x = ints.quad_of_all(builder, VECTORS, self.at(3, builder.add(start, self.offset(4 * quad)), I32))
                for side in range(SIDE):
                    part[row][side] = FORM.add_bytes(builder, part[row][side], weights[side], x)
        for values, places in zip(sums, self._sums, strict=True):
            for row, totals in enumerate(places):
                for side, total in enumerate(totals):
                    builder.store(values[row][side], total)

    def _vector(self, begin: Any, side: int) -> Any:
        place = self._builder.add(begin, self.offset(4 * VECTORS.outputs * side))
        return self._builder.load(self.at(1, place, VECTORS.bytes), align=1)

    def fetch(self, line: Any) -> None:
        """Asks for some cache lines of the weights; behind the end that asks for nothing."""
        for index in range(self.lines):
            byte = self._builder.mul(self._builder.add(line, self.offset(index)), self.offset(LINE))
            prefetch_line(self._builder, self.at(1, byte, I8))

    def store(self, row: int, x_scale: Any, scales: Any, place: Any) -> None:
        """Scales the sums of a row and stores them; the arguments are where its scale, the panel's and its results begin."""
        builder = self._builder
        at_row = self.at(4, x_scale, F32)
        factor = ints.splat(builder, VECTORS.floats, builder.load(at_row, align=4))
        raised = builder.mul(builder.fptosi(builder.load(builder.gep(at_row, [self.offset(1)]), align=4), I32), I32(FORM.raised))
        for side in range(SIDE):
            total, *others = (builder.load(part[row][side]) for part in self._sums)
            for other in others:
                total = builder.add(total, other)
            exact = builder.sitofp(builder.sub(total, ints.splat(builder, VECTORS.ints, raised)), VECTORS.floats)
            shift = self.offset(VECTORS.outputs * side)
            # the scales' array is of the halves of float32
            scale = builder.load(self.at(2, builder.mul(builder.add(scales, shift), self.offset(2)), VECTORS.floats), align=4)
            to = self.at(8, builder.add(place, shift), VECTORS.floats)
            builder.store(builder.fmul(builder.fmul(exact, factor), scale), to, align=4)


@intrinsic
def rotated_tile(
    typingctx: Any, rows: Any, codes: Any, scales: Any, x: Any, x_scales: Any, panel: Any, first: Any, groups: Any, out: Any,
    place: Any, stride: Any, line: Any, lines: Any,
) -> Any:  # fmt: skip
    """As the tiles of `group_tile`: rows (a constant) at once; the four arrays; the panel, the first row, groups of K; where the
    results go: an f32 array, the flat place of the first row's there, and the distance to the next row's. And what to ask memory
    for meanwhile: from which cache line of the weights on, and how many for each group."""
    whole = types.intp

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile = _Tile(context, builder, signature, args)
        panel, first, groups, _, place, stride, line, _ = args[5:]
        row_at = [builder.mul(builder.add(first, tile.offset(row)), groups) for row in range(tile.num_rows)]
        begin = builder.mul(panel, groups)
        with cgutils.for_range(builder, groups) as loop:
            tile.fetch(builder.add(line, builder.mul(loop.index, tile.offset(tile.lines))))
            tile.add_quads(
                builder.mul(builder.add(begin, loop.index), tile.offset(4 * PANEL * QUADS)),
                [builder.mul(builder.add(start, loop.index), tile.offset(4 * QUADS)) for start in row_at],
            )
        for row, start in enumerate(row_at):
            to = builder.add(place, builder.mul(stride, tile.offset(row)))
            tile.store(row, builder.mul(start, tile.offset(2)), builder.mul(panel, tile.offset(PANEL)), to)
        return context.get_dummy_value()

    return types.void(rows, codes, scales, x, x_scales, whole, whole, whole, out, whole, whole, whole, lines), codegen
