"""The prefix index: which block holds the keys and values of which token prefix.

A full block is named by a SHA-256 chain: digest(block i) = SHA-256(digest(block i-1) + its token ids), and the chain starts at a
digest over tagged fields (model, tenant, salt, block size), so that no two of them can stand in for each other. Tokens and the full
digest are compared on a hit.
"""

from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import islice

TAG = b"drumline/prefix/1"


def chain_root(*, model_digest: str, tenant: str, cache_salt: str, block_size: int) -> bytes:
    """Where a chain starts. Each field is tagged by its place and length, so "a"+"b" never equals "ab"+""."""
    digest = sha256(TAG)
    for text in (model_digest, tenant, cache_salt, str(block_size)):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


class PrefixChain:
    """The leading full blocks of one sequence, named. Grows with its tokens; holds for one model and block size.

    Attributes:
        root: where it starts.
        digests: name per block.
        chunks: token ids per block as hashed, 4 bytes each.
    """

    __slots__ = ("block_size", "chunks", "digests", "root")

    def __init__(self, root: bytes, *, block_size: int) -> None:
        self.root = root
        self.block_size = block_size
        self.digests: list[bytes] = []
        self.chunks: list[bytes] = []

    def extend(self, tokens: Sequence[int], num_blocks: int) -> None:
        """Names at least the first `num_blocks` blocks of `tokens`, all of them full."""
        size, width = self.block_size, 4 * self.block_size
        raw = chunk_of(tokens[len(self.digests) * size : num_blocks * size])
        digest = self.digests[-1] if self.digests else self.root
        for at in range(0, len(raw), width):
            chunk = raw[at : at + width]
            digest = sha256(digest + chunk).digest()
            self.digests.append(digest)
            self.chunks.append(chunk)

    def parent(self, index: int) -> bytes:
        """Name of the block before block `index`, or the root."""
        return self.digests[index - 1] if index else self.root


def token_ids(chunk: bytes) -> list[int]:
    """The token ids that a chunk was made of."""
    return array("I", chunk).tolist()


def chunk_of(tokens: Sequence[int]) -> bytes:
    """Token ids as they are hashed."""
    return array("I", tokens).tobytes()


def identity(digest: bytes) -> bytes:
    """The index key of a digest: itself."""
    return digest


class PrefixIndex:
    """Published blocks by digest, and what is known of them as columns by block id; at most one block per digest, the first wins.

    `fingerprint` maps a digest to its key in the index; a colliding one costs hits, never correctness.

    Attributes:
        digests: a block's name in its chain; empty = not published.
        parents: name of the block before it, or the root.
        chunks: its own token ids as hashed, 4 bytes each.
        owners: key of the sequence that computes it.
        confirmed: its plan has returned and ran; until then a hit relies on a plan that was sent.
    """

    def __init__(self, num_blocks: int, fingerprint: Callable[[bytes], bytes] = identity) -> None:
        self.digests = [b""] * num_blocks
        self.parents = [b""] * num_blocks
        self.chunks = [b""] * num_blocks
        self.owners = [-1] * num_blocks
        self.confirmed = [False] * num_blocks
        self._fingerprint = fingerprint
        self._by_key: dict[bytes, int] = {}

    def match(self, chain: PrefixChain, max_blocks: int) -> list[int]:
        """Blocks that hold the longest published prefix of `chain`, at most `max_blocks`. Changes nothing."""
        blocks: list[int] = []
        for digest, chunk in zip(islice(chain.digests, max_blocks), chain.chunks, strict=False):
            block = self._by_key.get(self._fingerprint(digest))
            if block is None or self.digests[block] != digest or self.chunks[block] != chunk:
                break
            blocks.append(block)
        return blocks

    def __contains__(self, digest: bytes) -> bool:
        """Whether a block may be published under `digest`; `match` tells for sure."""
        return self._fingerprint(digest) in self._by_key

    def add(self, block: int, digest: bytes, parent: bytes, chunk: bytes, owner: int, confirmed: bool) -> bool:
        """Publishes; False, and nothing happens, when the key is taken by another block."""
        key = self._fingerprint(digest)
        if self._by_key.setdefault(key, block) != block:
            return False
        self.digests[block] = digest
        self.parents[block] = parent
        self.chunks[block] = chunk
        self.owners[block] = owner
        self.confirmed[block] = confirmed
        return True

    def add_chain(self, chain: PrefixChain, blocks: Sequence[int], *, first: int, end: int, owner: int, confirmed: bool) -> None:
        """`add` for blocks number `first` to `end` of a sequence whose table is `blocks`."""
        add, parent = self.add, chain.parent(first)
        for block, digest, chunk in zip(blocks[first:end], chain.digests[first:end], chain.chunks[first:end], strict=True):
            add(block, digest, parent, chunk, owner, confirmed)
            parent = digest

    def remove(self, block: int) -> None:
        """Un-publishes a block; nothing happens when it is not published."""
        digest = self.digests[block]
        if digest:
            del self._by_key[self._fingerprint(digest)]
            self.digests[block] = b""

    def published(self) -> list[int]:
        """Published blocks, rising."""
        return sorted(self._by_key.values())

    def __len__(self) -> int:
        """Published blocks."""
        return len(self._by_key)
