"""What a scripted executor says: a pure function of everything in a sequence's context, and the sequence itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from drumline.common.v1 import common_pb2

VOCAB_SIZE = 1000


def next_token(tokens: Sequence[int], seed: int) -> int:
    """The token after `tokens`: depends on every one of them and on their order."""
    value = seed & 0xFFFFFFFF
    for token in tokens:
        value = (value * 1000003 + token + 1) & 0xFFFFFFFF
    return (value ^ (value >> 15)) % VOCAB_SIZE


def expected_tokens(prompt: Sequence[int], seed: int, num: int) -> list[int]:
    """What a sequence of `num` output tokens must be."""
    tokens = list(prompt)
    for _ in range(num):
        tokens.append(next_token(tokens, seed))
    return tokens[len(prompt) :]


@dataclass
class Resident:
    """A sequence in a slot. `length` = tokens with keys and values."""

    tokens: list[int]
    num_prompt: int
    sampling: common_pb2.SamplingParams
    length: int
    blocks: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - self.num_prompt
