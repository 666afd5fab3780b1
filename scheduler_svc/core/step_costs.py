"""What a step of an executor takes for so many tokens, learned from its results. Integers only: a replay must come out the same."""

from typing import Final

WEIGHT: Final = 3
"""A new measurement counts 1 / 2**WEIGHT of what is known."""
OUTLIER: Final = 4
"""A step that took so many times what was expected says something about the machine, not about its tokens."""
FIXED_TOKENS: Final = 4
"""Until something is known, a step is thought to cost as much as so many tokens before it feeds any."""
_SHIFT: Final = 8


class StepCosts:
    """Averages by number of tokens: each up to 8 has its own, above that each half octave.

    Attributes:
        known: place -> (nanoseconds, tokens), averages, in 1/256.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, int]] = {}

    def add(self, num_tokens: int, ns: int) -> None:
        """A step that fed `num_tokens` took `ns`."""
        place = _place(num_tokens)
        found = self.known.get(place)
        if found is None:
            self.known[place] = (ns << _SHIFT, num_tokens << _SHIFT)
            return
        mean_ns, mean_tokens = found
        ns = min(ns << _SHIFT, OUTLIER * mean_ns)
        self.known[place] = (
            mean_ns + ((ns - mean_ns) >> WEIGHT),
            mean_tokens + (((num_tokens << _SHIFT) - mean_tokens) >> WEIGHT),
        )

    def of(self, num_tokens: int) -> int:
        """Expected nanoseconds in 1/256, above 0; between two known sizes on a line, beyond them by `FIXED_TOKENS`."""
        place, tokens = _place(num_tokens), num_tokens << _SHIFT
        if not self.known:
            return num_tokens + FIXED_TOKENS
        below = [known for known in self.known if known <= place]
        above = [known for known in self.known if known >= place]
        if below and above and place not in self.known:
            (low_ns, low), (high_ns, high) = self.known[max(below)], self.known[min(above)]
            return max(1, low_ns + (high_ns - low_ns) * (tokens - low) // max(1, high - low))
        ns, near = self.known[max(below) if below else min(above)]
        fixed = FIXED_TOKENS << _SHIFT
        return max(1, ns * (tokens + fixed) // (near + fixed))


def _place(num_tokens: int) -> int:
    if num_tokens <= 8:
        return num_tokens
    octave = num_tokens.bit_length() - 1
    return 2 * octave + 2 + (num_tokens >> (octave - 1) & 1)
