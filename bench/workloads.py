"""What is sent: named workloads as lists of requests with exact prompt and output lengths.

A prompt is token ids of whole words (" word": ASCII, lower case, four letters or more), so that N words are N prompt tokens on any
server with that vocabulary. Lengths depend on the seed alone; words depend on seed and repetition, so that no prefix cache helps
across repetitions.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class Shape:
    """One workload.

    Attributes:
        name: as in docs/performance.md.
        title: for the table.
        num_streams: clients at work at the same time.
        num_rounds: requests of each client, one after the other.
        prompt_tokens, output_tokens: inclusive range that lengths are drawn from, uniformly.
        num_shared_tokens: leading prompt tokens that all streams share.
        warm: the shared prefix is that of the cold workload before it.
    """

    name: str
    title: str
    num_streams: int
    num_rounds: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    num_shared_tokens: int = 0
    warm: bool = False


@dataclass(frozen=True)
class Request:
    """One completion: exactly these tokens in, exactly so many out."""

    prompt: tuple[int, ...]
    num_output_tokens: int


SHAPES: Final = {
    shape.name: shape
    for shape in (
        Shape("W1", "1 stream, 128/128", 1, 4, (128, 128), (128, 128)),
        Shape("W2", "8 streams, 128/128", 8, 1, (128, 128), (128, 128)),
        Shape("W3", "32 streams, 128/128", 32, 1, (128, 128), (128, 128)),
        Shape("W4", "32 mixed streams, 32..1024/16..256", 32, 1, (32, 1024), (16, 256)),
        Shape("W5", "64 mixed streams", 64, 1, (32, 1024), (16, 256)),
        Shape("W5b", "128 mixed streams", 128, 1, (32, 1024), (16, 256)),
        Shape("W6c", "32 streams, 512 shared + 32, cold", 32, 1, (544, 544), (64, 64), num_shared_tokens=512),
        Shape("W6w", "32 streams, 512 shared + 32, warm", 32, 1, (544, 544), (64, 64), num_shared_tokens=512, warm=True),
    )
}
QUICK_MAX_STREAMS: Final = 4
QUICK_DIVISOR: Final = 8


def quickened(shape: Shape) -> Shape:
    """The same in small, for smoke tests."""

    def less(lengths: tuple[int, int]) -> tuple[int, int]:
        return max(1, lengths[0] // QUICK_DIVISOR), max(1, lengths[1] // QUICK_DIVISOR)

    return replace(
        shape,
        title=f"quick: {shape.title}",
        num_streams=min(shape.num_streams, QUICK_MAX_STREAMS),
        num_rounds=1,
        prompt_tokens=less(shape.prompt_tokens),
        output_tokens=less(shape.output_tokens),
        num_shared_tokens=shape.num_shared_tokens // QUICK_DIVISOR,
    )


def requests_of(shape: Shape, words: Sequence[int], *, seed: int, repetition: int) -> list[list[Request]]:
    """Requests by stream, then by round. `words` are the token ids to draw from."""
    lengths = random.Random(f"{seed} {shape.num_streams} {shape.prompt_tokens} {shape.output_tokens}")
    text = random.Random(f"{seed} {repetition} {shape.name}")
    # Cold and warm draw the same prefix: warm finds what cold left behind.
    prefix = tuple(random.Random(f"{seed} {repetition} prefix").choices(words, k=shape.num_shared_tokens))

    def one() -> Request:
        num_prompt = lengths.randint(*shape.prompt_tokens)
        own = tuple(text.choices(words, k=num_prompt - len(prefix)))
        return Request(prefix + own, lengths.randint(*shape.output_tokens))

    return [[one() for _ in range(shape.num_rounds)] for _ in range(shape.num_streams)]
