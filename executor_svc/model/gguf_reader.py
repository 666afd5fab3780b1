"""The container of a GGUF file: metadata and where each tensor lies. Dequantising is the `gguf` package's.

That package's own reader builds several Python objects for every string of the vocabulary: seconds at each start, where this
takes a fraction of one. Every length in the file is checked against the file's size before it is believed.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from executor_svc.model.errors import ModelError, UnsupportedModel

_MAGIC: Final = 0x46554747
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_DIMENSIONS: Final = 4


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Shape with the innermost dimension last, kind of quantisation, first byte in the file."""

    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    start: int


class GgufReader:
    """One file, mapped read-only for as long as this object lives.

    Attributes:
        metadata: key -> number, bool, string or list of those.
        tensors: name as in the file -> place; every place was checked to lie inside the file.
    """

    def __init__(self, path: Path) -> None:
        """Reads the header; raises ModelError when it is not whole or not GGUF."""
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelError("the GGUF file is empty")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        try:
            num_tensors = self._read_start()
            self.metadata: dict[str, Any] = dict(self._pair() for _ in range(self._num_pairs))
            places = dict(self._tensor() for _ in range(num_tensors))
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise ModelError(f"the header of the GGUF file is broken near byte {self._at}") from error
        self.tensors: dict[str, TensorPlace] = self._placed(places)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, a view of the file: shaped like the tensor but for its last dimension, which holds blocks."""
        place = self.tensors[name]
        shape = gguf.quant_shape_to_byte_shape(place.shape, place.kind)
        return np.frombuffer(self._bytes, np.uint8, count=math.prod(shape), offset=place.start).reshape(shape)

    def dequantised(self, name: str) -> NDArray[np.float32]:
        """A tensor in float32, in memory of its own. UnsupportedModel names a quantisation that cannot be read."""
        place = self.tensors[name]
        try:
            array = gguf.dequantize(self.raw(name), place.kind)
            # a tensor that is float32 in the file comes as a view of it, which cannot be written: only that one is copied
            return np.require(array, np.float32, ["C", "W"]).reshape(place.shape)
        except NotImplementedError as error:
            raise UnsupportedModel(f"tensor {name!r} is quantised as {place.kind.name}, which cannot be read") from error

    def _read_start(self) -> int:
        """Magic, version and counts; gives the number of tensors."""
        magic, version = self._take("II")
        if magic != _MAGIC:
            raise ModelError("the file does not begin as GGUF files do")
        if version not in _VERSIONS:
            raise UnsupportedModel(f"GGUF version {version} is not supported; known: {_VERSIONS}")
        num_tensors, self._num_pairs = self._take("QQ")
        return int(num_tensors)

    def _take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{layout}")
        return values

    def _span(self, length: int) -> bytes:
        if length > len(self._bytes) - self._at:
            raise ValueError("longer than the file")
        self._at += length
        return self._bytes[self._at - length : self._at]

    def _string(self) -> str:
        return self._span(self._take("Q")[0]).decode()

    def _pair(self) -> tuple[str, Any]:
        key, kind = self._string(), self._take("I")[0]
        return key, self._array() if kind == _ARRAY else self._value(kind)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind not in _SCALARS:
            raise ValueError("unknown kind of value")
        return self._take(_SCALARS[kind])[0]

    def _array(self) -> list[Any]:
        kind, count = self._take("IQ")
        if kind in _SCALARS:
            layout = np.dtype(_SCALARS[kind]).newbyteorder("<")
            return list(np.frombuffer(self._span(count * layout.itemsize), layout).tolist())
        if kind != _STRING or count > len(self._bytes):
            raise ValueError("an array of arrays, or longer than the file")
        return self._strings(count)

    def _strings(self, count: int) -> list[str]:
        """As `_string` so many times: a vocabulary has a hundred thousand, and calls for each of them take a third of a second."""
        length_at, at, content = struct.Struct("<Q").unpack_from, self._at, self._bytes
        strings = []
        for _ in range(count):
            end = at + 8 + length_at(content, at)[0]
            if end > len(content):
                raise ValueError("longer than the file")
            strings.append(content[at + 8 : end].decode())
            self._at = at = end
        return strings

    def _tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name, num_dimensions = self._string(), self._take("I")[0]
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ValueError("number of dimensions")
        shape = tuple(reversed(self._take("Q" * num_dimensions)))
        return name, (shape, *self._take("IQ"))

    def _placed(self, tensors: dict[str, tuple[tuple[int, ...], int, int]]) -> dict[str, TensorPlace]:
        alignment = self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError("general.alignment is not a positive number")
        data = -(-self._at // alignment) * alignment
        return {name: self._place(name, shape, kind, data + offset) for name, (shape, kind, offset) in tensors.items()}

    def _place(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> TensorPlace:
        try:
            known = gguf.GGMLQuantizationType(kind)
            num_bytes = math.prod(gguf.quant_shape_to_byte_shape(shape, known))
        except ValueError as error:
            raise UnsupportedModel(
                f"tensor {name!r} has a quantisation or shape that is not known: kind {kind}, shape {shape}"
            ) from error
        if start + num_bytes > len(self._bytes):
            raise ModelError(f"tensor {name!r} reaches behind the end of the file: the file is not whole")
        return TensorPlace(shape, known, start)
