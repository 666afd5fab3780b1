"""The CPU backend's layouts: caches for the dense ones, what is declared about raggedness, which attention is in use."""

import dataclasses
import logging
from collections.abc import Callable

import numpy as np

from executor_svc.layouts.cohort import KvShape
from executor_svc.layouts.dense import DenseCaches
from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.rolling import RollingSlot
from executor_svc.layouts.slot_kinds import KvSlot
from executor_svc.model.cache import KvCache, KvType
from executor_svc.model.config import ModelConfig
from executor_svc.model.forward import Decoder
from executor_svc.plan import ALIGNED, CACHE_RESET, Batch
from executor_svc.ragged import ModelFacts, PlainPipeline, RaggedPipeline, RaggedSwitches

log = logging.getLogger(__name__)


def dense_caches(config: ModelConfig, *, blocks: KvCache) -> DenseCaches:
    """Own caches and cohorts beside the blocks. A cohort may be as large as all blocks together, and no larger."""
    max_bytes = sum(array.nbytes for array in (*blocks.keys, *blocks.values))
    shape = KvShape(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_bytes=max_bytes,
        kv_type=blocks.kv_type,
    )
    log.info(
        "attention: cpu.paged_attention over blocks, cpu.dense_attention over cohorts, head size %d, on the processor; "
        "not diverted: all families and masks go through these two",
        config.head_dim,
    )
    return DenseCaches(shape, make_slots=slot_maker(config, kv_type=blocks.kv_type), blocks=blocks)


def slot_maker(config: ModelConfig, *, kv_type: KvType = np.float32) -> Callable[[], list[KvSlot]]:
    """Makes the cache of a sequence that holds nothing yet: normal slots, rolling ones where a family says so of its windows.

    Elsewhere a layer with a window keeps its old tokens and does not look at them, which lets its rows differ in length.
    """

    def slot(window: int) -> KvSlot:
        if not config.rolling or not window:
            return NormalSlot()
        return RollingSlot(num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, window=window, kv_type=kv_type)

    return lambda: [slot(window) for window in config.windows]


def plain_pipeline(name: str, config: ModelConfig, *, refused: bool, switches: RaggedSwitches) -> RaggedPipeline:
    """Decoding without drafts, where neither switch has anything to decide; one that is on is said to be without effect.

    Both attention kernels take a length and a lead per row, with a window and without.
    """
    for switch, is_on, missing in (
        ("mtp_per_seq_kv", switches.mtp_per_seq_kv, "it drafts nothing"),
        ("v4_xs_per_seq", switches.v4_xs_per_seq, "no layer of its models has xs_rolling slots"),
    ):
        if is_on:
            log.warning("%s has no effect on this backend: %s", switch, missing)
    model = ModelFacts(config.family, slots=slot_maker(config)(), masks_ragged_batches=True)
    return PlainPipeline(name, model=model, refused="refused by the setting `ragged`" if refused else "")


def warm_up_dense(decoder: Decoder, batch: Batch, *, dense: DenseCaches) -> None:
    """Compiles what the dense layouts need besides, on one layer; leaves no cache behind."""
    batch = dataclasses.replace(batch, layout=ALIGNED, cache_op=CACHE_RESET, slots=batch.sample.slots)
    decoder.hidden(batch, cache=dense, num_layers=1)
    dense.reset()
