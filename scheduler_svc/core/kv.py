"""One executor's KV memory as the scheduler sees it: the pool and the prefix index, kept in step."""

from collections.abc import Callable, Sequence

from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.prefix import PrefixIndex, identity


class KvCache:
    """Blocks are taken, confirmed, un-published and released here and nowhere else.

    Attributes:
        block_size: tokens per block.
        pool: reference counts and free lists.
        index: published blocks. An unheld block is published iff it is in the pool's LRU.
    """

    def __init__(self, *, num_blocks: int, block_size: int, fingerprint: Callable[[bytes], bytes] = identity) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(fingerprint)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that cover `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one holder each; evicts least recently used cached ones. The caller checks `pool.num_available`."""
        blocks, evicted = self.pool.pop(count)
        for block in evicted:
            self.index.remove(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each; published ones stay hittable. The last block goes first, so that a prefix outlives its tail."""
        published = self.index.by_block
        for block in reversed(blocks):
            self.pool.drop(block, keep=block in published)

    def confirm(self, block: int, *, owner: int) -> None:
        """The plan that computes `block` has returned and ran."""
        entry = self.index.by_block.get(block)
        if entry is not None and entry.owner == owner:
            entry.confirmed = True

    def withdraw(self, blocks: Sequence[int], *, owner: int) -> list[int]:
        """Un-publishes those of `blocks` that `owner` published and has not computed; returns those that others hold too."""
        shared = []
        for block in blocks:
            entry = self.index.by_block.get(block)
            if entry is not None and entry.owner == owner and not entry.confirmed:
                self.index.remove(block)
                if self.pool.refs[block] > 1:
                    shared.append(block)
        return shared
