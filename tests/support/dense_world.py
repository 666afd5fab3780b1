"""Dense caches without a decoder: batches by hand, keys and values that say whose they are, and a toy model in the shape of V4."""

from collections.abc import Callable

import numpy as np

from executor_svc.layouts.access import DenseAccess
from executor_svc.layouts.cohort import KvShape
from executor_svc.layouts.dense import DenseCaches, normal_slots
from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.slot_kinds import KvSlot
from executor_svc.layouts.xs_rolling import XsRollingSlot
from executor_svc.model.cache import Rotation
from executor_svc.plan import Batch
from tests.support.batches import columns_of

HEADS, DIM, LAYERS = 2, 4, 2
NO_TURN = Rotation(np.ones((4096, DIM // 2), np.float32), np.zeros((4096, DIM // 2), np.float32), None, None, 0.0)
"""Positions turn nothing, so that a key can be read back."""


def batch_of(slots: list[int], *, starts: list[int], fed: int, layout: int, op: int, left: tuple[int, ...] = ()) -> Batch:
    """Rows `slots`, each feeding `fed` tokens from its own position on."""
    num_rows, none = len(slots), np.zeros(0, np.int32)
    positions = np.array([start + i for start in starts for i in range(fed)], np.int32)
    return Batch(
        token_ids=np.zeros(num_rows * fed, np.int32),
        positions=positions,
        query_start=(np.arange(num_rows + 1) * fed).astype(np.int32),
        context_len=np.array(starts, np.int32) + np.int32(fed),
        block_tables=np.full((num_rows, 1), -1, np.int32),
        sample=columns_of([]),
        prompt_logprob_rows=none,
        prompt_num_top=none,
        copy_src=none,
        copy_dst=none,
        want_digests=False,
        layout=layout,
        cache_op=op,
        slots=np.array(slots, np.int32),
        left_slots=np.array(left, np.int32),
    )


def dense_caches(make_slots: Callable[[], list[KvSlot]] | None = None, *, layers: int = LAYERS) -> DenseCaches:
    shape = KvShape(num_layers=layers, num_kv_heads=HEADS, head_dim=DIM, max_bytes=2**26)
    caches = DenseCaches(shape, make_slots=make_slots or normal_slots(layers))
    caches.granted = True
    return caches


def write(access: DenseAccess, tokens: np.ndarray, *, layers: int = LAYERS) -> None:
    """Appends f32 [T] numbers as keys, and negated as values, in every layer."""
    for layer in range(layers):
        parts = [np.repeat(tokens[:, None], HEADS * DIM, 1) * sign for sign in (0, 1, -1)]
        q = np.zeros((len(tokens), HEADS, DIM), np.float32)
        access.write(layer, np.ascontiguousarray(np.concatenate(parts, 1), np.float32), rotation=NO_TURN, q_out=q)


def live_tokens(slot: KvSlot) -> list[float]:
    """What `write` left in a slot's live columns; keys, values and heads must agree."""
    assert isinstance(slot, NormalSlot)
    keys, values = slot.arrays()
    seen = keys[0, 0, : slot.length]
    np.testing.assert_array_equal(keys[:, :, : slot.length], np.broadcast_to(seen, (HEADS, DIM, slot.length)))
    np.testing.assert_array_equal(values[:, : slot.length], np.broadcast_to(-seen[:, None], (HEADS, slot.length, DIM)))
    return seen.tolist()


class ToyV4:
    """Two layers: sliding attention over a normal slot, and a strided pool of hidden states in an xs_rolling slot.

    Its next token depends on the window and on every visible compressed row, so a wrong length, a dead column or a block too many
    shows up as another token.
    """

    VOCAB, WINDOW, RATIO = 53, 12, 4

    def __init__(self, *, per_sequence: bool, seed: int = 11) -> None:
        rng = np.random.default_rng(seed)
        self._embedding = rng.standard_normal((self.VOCAB, 3 * HEADS * DIM), dtype=np.float32)
        self._head = rng.standard_normal((2 * HEADS * DIM, self.VOCAB), dtype=np.float32)
        angles = np.arange(512, dtype=np.float32)[:, None] * np.array([1.0, 0.1], np.float32)
        self._rotation = Rotation(np.cos(angles), np.sin(angles), None, None, 0.0)
        self._per_sequence = per_sequence

    def slots(self) -> list[KvSlot]:
        """A fresh sequence's cache."""
        width = HEADS * DIM
        pool = XsRollingSlot(
            lambda rows: rows.mean(0),
            width=width,
            compressed_width=width,
            ratio=self.RATIO,
            span=2,
            per_sequence=self._per_sequence,
        )
        return [NormalSlot(), pool]

    def caches(self) -> DenseCaches:
        return dense_caches(self.slots, layers=2)

    def step(self, caches: DenseCaches, batch: Batch, tokens: list[list[int]]) -> list[list[int]]:
        """Feeds rows of tokens; the greedy token after each of them."""
        access = caches.begin(batch)
        flat = np.array([token for row in tokens for token in row])
        qkv = self._embedding[flat]
        q, out = (np.zeros((len(flat), HEADS, DIM), np.float32) for _ in range(2))
        access.write(0, qkv, rotation=self._rotation, q_out=q)
        access.attend(0, q, scale=DIM**-0.5, window=self.WINDOW, out=out)
        hidden, fed, pooled = out.reshape(len(flat), -1), len(tokens[0]), np.zeros((len(flat), HEADS * DIM), np.float32)
        for row in range(len(tokens)):
            slot = caches.cohort.layers[1].slots[row]
            slot.append(qkv[row * fed : (row + 1) * fed, : HEADS * DIM])
            for i in range(row * fed, (row + 1) * fed):
                if visible := slot.num_visible(int(batch.positions[i])):
                    pooled[i] = (slot.comp[:visible] * np.arange(1, visible + 1, dtype=np.float32)[:, None]).sum(0)
        logits = np.concatenate([hidden, pooled], 1) @ self._head
        return logits.argmax(1).reshape(len(tokens), fed).tolist()
