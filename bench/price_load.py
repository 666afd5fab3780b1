"""The mixed workload of the price: the same prompts and lengths for every arm of one repeat."""

import random
from collections.abc import Sequence

from bench.price_config import PriceSettings
from bench.workloads import Request

SMOKE = {"rows": (4,), "prompt_tokens": (8, 16, 40), "output_tokens": 8, "repeats": 1}


def shrunk(wanted: PriceSettings) -> PriceSettings:
    """What `--smoke` makes of the settings."""
    return wanted.model_copy(update=SMOKE) if wanted.smoke else wanted


def streams_of(wanted: PriceSettings, words: Sequence[int], *, num_rows: int, turn: int) -> list[list[Request]]:
    """One request a row. Each length comes equally often (up to one), in an order drawn by the seed; words change with the turn."""
    lengths = [wanted.prompt_tokens[row % len(wanted.prompt_tokens)] for row in range(num_rows)]
    random.Random(f"{wanted.seed} {num_rows}").shuffle(lengths)
    text = random.Random(f"{wanted.seed} {num_rows} {turn}")
    return [[Request(tuple(text.choices(words, k=length)), wanted.output_tokens)] for length in lengths]


def longest_of(wanted: PriceSettings) -> int:
    """Tokens of the longest row at its end."""
    return max(wanted.prompt_tokens) + wanted.output_tokens
