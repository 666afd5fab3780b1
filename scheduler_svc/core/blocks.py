"""A pool of KV blocks: who is free, who is kept only for prefix hits, who is held and how often."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from scheduler_svc.core.errors import InvariantViolation


class BlockPool:
    """Reference counts over block ids 0..num_blocks-1. A block is in exactly one of three places.

    Attributes:
        refs: holders per block.
        empty: unheld blocks without usable content, next to be handed out at the left.
        cached: unheld blocks whose content may be hit, least recently released first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.empty: deque[int] = deque(range(num_blocks))
        self.cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now, evicting cached ones."""
        return len(self.empty) + len(self.cached)

    @property
    def num_held(self) -> int:
        """Blocks with at least one holder."""
        return self.num_blocks - self.num_available

    def pop(self, count: int) -> tuple[list[int], list[int]]:
        """Hands out `count` blocks with one holder each; second, those of them whose cached content is gone. Checks nothing."""
        empty, cached, refs = self.empty, self.cached, self.refs
        num_evicted = max(0, count - len(empty))
        evicted = [cached.popitem(last=False)[0] for _ in range(num_evicted)]
        blocks = [empty.popleft() for _ in range(count - num_evicted)] + evicted
        for block in blocks:
            refs[block] = 1
        return blocks, evicted

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each block; cached ones leave the LRU."""
        for block in blocks:
            if self.refs[block] == 0:
                if block not in self.cached:
                    raise InvariantViolation(f"block {block} is held while it has no content")
                del self.cached[block]
            self.refs[block] += 1

    def drop(self, block: int, *, keep: bool) -> None:
        """One holder less; the last one leaves the block in the LRU when `keep`, else empty."""
        if self.refs[block] <= 0:
            raise InvariantViolation(f"block {block} is released twice")
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if keep:
                self.cached[block] = None
            else:
                self.empty.append(block)

    def count_unheld(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` have no holder, and would leave `num_available` when held."""
        refs = self.refs
        return sum(1 for block in blocks if refs[block] == 0)
