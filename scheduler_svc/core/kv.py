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
        self.index = PrefixIndex(num_blocks, fingerprint)

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
        digests = self.index.digests
        for block in reversed(blocks):
            self.pool.drop(block, keep=bool(digests[block]))

    def confirm(self, block: int, *, owner: int) -> None:
        """The plan that computes `block` has returned and ran."""
        if self.index.owners[block] == owner:
            self.index.confirmed[block] = True

    def withdraw(self, blocks: Sequence[int], *, owner: int) -> list[int]:
        """Un-publishes those of `blocks` that `owner` published and has not computed; returns those that others hold too."""
        index, shared = self.index, []
        for block in blocks:
            if index.digests[block] and index.owners[block] == owner and not index.confirmed[block]:
                index.remove(block)
                if self.pool.refs[block] > 1:
                    shared.append(block)
        return shared
