"""The four arms and the cells of the curve, and what each worker asks for: mixed and uniform arms matched in tokens."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from bench.curve_config import CurveSettings
from bench.order import rotated
from bench.workloads import Request


@dataclass(frozen=True, slots=True)
class CurveArm:
    """Who may share a step, and whether lengths differ. Arms differ in nothing else."""

    letter: str
    admission: str
    mixed: bool

    @property
    def lengths(self) -> str:
        """For tables."""
        return "mixed" if self.mixed else "uniform"


ARMS: Final = (
    CurveArm("A", "bucketed", mixed=False),
    CurveArm("B", "bucketed", mixed=True),
    CurveArm("C", "ragged", mixed=False),
    CurveArm("D", "ragged", mixed=True),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm with so many workers."""

    arm: CurveArm
    batch: int

    @property
    def name(self) -> str:
        """For files and the status."""
        return f"{self.arm.letter}-{self.batch}"


def cells_of(wanted: CurveSettings) -> list[Cell]:
    """In the order of running: all arms of one number of workers beside each other, another one first each time."""
    arms = [arm for arm in ARMS if arm.mixed or not wanted.smoke]
    return [Cell(arm, batch) for turn, batch in enumerate(wanted.batch) for arm in rotated(arms, turn)]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output lengths of one arm's requests."""

    prompts: tuple[int, ...]
    output_min: int
    output_max: int
    mixed: bool

    @property
    def longest(self) -> int:
        """Tokens of the longest row at its end."""
        if self.mixed:
            return max(self.prompts) + self.output_max
        return sum(self.uniform())

    def uniform(self) -> tuple[int, int]:
        """The one prompt length and the one output length of the uniform arms: the means, rounded."""
        return round(sum(self.prompts) / len(self.prompts)), (self.output_min + self.output_max) // 2

    def of_worker(self, seed: int) -> Iterator[tuple[int, int]]:
        """Endlessly (prompt, output) lengths. Each round of a mixed worker has every prompt length once, and outputs whose mean is
        that of the uniform arm: what one draws above the mean, another one has below it."""
        rng, (prompt, output) = random.Random(seed), self.uniform()
        while True:
            if not self.mixed:
                yield prompt, output
                continue
            prompts = rng.sample(self.prompts, len(self.prompts))
            above = [rng.randint(0, output - self.output_min) for _ in range(len(prompts) // 2)]
            spread = [*above, *(-value for value in above), *([0] * (len(prompts) % 2))]
            outputs = [output + value for value in rng.sample(spread, len(spread))]
            yield from zip(prompts, outputs, strict=True)


def lengths_of(arm: CurveArm, wanted: CurveSettings) -> Lengths:
    """The arm's lengths."""
    return Lengths(wanted.prompt_tokens, wanted.output_tokens_min, wanted.output_tokens_max, mixed=arm.mixed)


def requests_of(lengths: Lengths, words: Sequence[int], *, seed: int) -> Iterator[Request]:
    """What one worker asks for, one after the other. No two prompts begin alike, so no prefix is ever shared."""
    text = random.Random(f"words {seed}")
    for _, (prompt, output) in zip(count(), lengths.of_worker(seed), strict=False):
        yield Request(tuple(text.choices(words, k=prompt)), output)
