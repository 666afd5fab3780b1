"""Stop strings: found wherever tokens split them, never shown in part.

A text stops at the first character that completes a stop string; if it completes several, the longest (the earliest to begin)
wins. So the result depends on the text alone, not on how tokens or steps cut it. One Knuth-Morris-Pratt automaton per stop string
reads each character once; what could still become a stop string (the longest automaton state) is held back.
"""

from collections.abc import Sequence


class StopMatcher:
    """Stateful, one per sequence. `matched` is the stop string found, or None; after a match nothing more may be pushed."""

    def __init__(self, stops: Sequence[str], *, include_match: bool = False) -> None:
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._include_match = include_match
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The part of held and new text that can be shown now."""
        for position, char in enumerate(text):
            # Every automaton must read the character, so the match is looked for afterwards.
            complete = [automaton.pattern for automaton in self._automata if automaton.feed(char)]
            if complete:
                self.matched = complete[0]
                seen = self._held + text[: position + 1]
                self._held = ""
                return seen if self._include_match else seen[: -len(self.matched)]
        seen = self._held + text
        hold = max((automaton.state for automaton in self._automata), default=0)
        self._held = seen[len(seen) - hold :]
        return seen[: len(seen) - hold]

    def flush(self) -> str:
        """The held text, when the sequence ended without a match."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """`state` = length of the longest prefix of the pattern that the text ends with."""

    __slots__ = ("_fallback", "pattern", "state")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.state = 0
        self._fallback = [0] * len(pattern)
        length = 0
        for position in range(1, len(pattern)):
            while length and pattern[position] != pattern[length]:
                length = self._fallback[length - 1]
            if pattern[position] == pattern[length]:
                length += 1
            self._fallback[position] = length

    def feed(self, char: str) -> bool:
        """Reads one character; True when the pattern is complete."""
        state = self.state
        while state and char != self.pattern[state]:
            state = self._fallback[state - 1]
        if char == self.pattern[state]:
            state += 1
        self.state = state
        return state == len(self.pattern)
