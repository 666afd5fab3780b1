"""How a segment lies on disk: magic, then blocks; the first block is the header.

    block = stored_bytes u32 | raw_bytes u32 | num_frames u32 | crc32 of these 12 bytes u32 | digest 16 bytes | zstd frame

The digest is BLAKE2b over the previous block's digest, the first 12 bytes and the body, so that a changed, dropped or exchanged
block is found; the CRC lets lengths be trusted before anything is read by them. Sizes are checked before anything is allocated. All
integers are little-endian.
"""

import struct
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import zstandard

from drumline import limits
from drumline.trace.frames import UnreadableRecording

MAGIC: Final = b"\x89DRUM\r\n\x1a"
"""High bit, line endings and ^Z: a transfer that treats it as text is found at once."""
BLOCK_BYTES: Final = 1 << 20
"""Raw size at which a writer closes a block; a single larger frame has a block of its own."""
MAX_RAW_BYTES: Final = limits.MAX_TRACE_FRAME_BYTES + BLOCK_BYTES
_LENGTHS: Final = struct.Struct("<III")
_CRC: Final = struct.Struct("<I")
_DIGEST_BYTES: Final = 16
HEAD_BYTES: Final = _LENGTHS.size + _CRC.size + _DIGEST_BYTES
FIRST_DIGEST: Final = blake2b(MAGIC, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Head:
    """The fixed part in front of a block's body."""

    stored_bytes: int
    raw_bytes: int
    num_frames: int
    digest: bytes


def encode(raw: bytes, *, num_frames: int, previous: bytes) -> tuple[bytes, bytes]:
    """(block, its digest)."""
    body = zstandard.ZstdCompressor(level=3).compress(raw)
    lengths = _LENGTHS.pack(len(body), len(raw), num_frames)
    digest = _digest(previous, lengths, body)
    return b"".join((lengths, _CRC.pack(zlib.crc32(lengths)), digest, body)), digest


def parse_head(head: bytes, *, name: str) -> Head:
    """Lengths that can be trusted; refuses a changed head and lengths beyond the limits."""
    lengths = head[: _LENGTHS.size]
    (crc,) = _CRC.unpack_from(head, _LENGTHS.size)
    if zlib.crc32(lengths) != crc:
        raise UnreadableRecording(f"{name}: the lengths' checksum differs")
    stored, raw, num_frames = _LENGTHS.unpack(lengths)
    if raw > MAX_RAW_BYTES or stored > MAX_RAW_BYTES:
        raise UnreadableRecording(f"{name}: declares {max(raw, stored)} bytes; the limit is {MAX_RAW_BYTES}")
    return Head(stored, raw, num_frames, head[_LENGTHS.size + _CRC.size :])


def decode(head: Head, body: bytes, *, previous: bytes, name: str) -> bytes:
    """The raw bytes of a block; refuses a body that was changed or that is larger than declared."""
    lengths = _LENGTHS.pack(head.stored_bytes, head.raw_bytes, head.num_frames)
    if _digest(previous, lengths, body) != head.digest:
        raise UnreadableRecording(f"{name}: the checksum differs; the file was changed")
    try:
        # a zstd frame that states its size is allocated at that size, whatever limit is passed: so look first
        declared = zstandard.get_frame_parameters(body).content_size
        if declared != head.raw_bytes:
            raise UnreadableRecording(f"{name}: the zstd frame declares {declared} bytes, the block {head.raw_bytes}")
        return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError:
        raise UnreadableRecording(f"{name}: not zstd") from None


def _digest(previous: bytes, lengths: bytes, body: bytes) -> bytes:
    digest = blake2b(previous, digest_size=_DIGEST_BYTES)
    digest.update(lengths)
    digest.update(body)
    return digest.digest()
