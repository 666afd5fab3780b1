"""The CPU backend's layouts: caches for the dense ones, what is declared about raggedness, which attention is in use."""

import dataclasses
import logging

from executor_svc.layouts.cohort import KvShape
from executor_svc.layouts.dense import DenseCaches, normal_slots
from executor_svc.model.cache import KvCache
from executor_svc.model.config import ModelConfig
from executor_svc.model.forward import Decoder
from executor_svc.plan import ALIGNED, CACHE_RESET, Batch
from executor_svc.ragged import ModelFacts, PlainPipeline, RaggedPipeline

log = logging.getLogger(__name__)


def dense_caches(config: ModelConfig, *, blocks: KvCache) -> DenseCaches:
    """Own caches and cohorts beside the blocks. A cohort may be as large as all blocks together, and no larger.

    Every layer has a normal slot: one with a sliding window keeps its old tokens and does not look at them.
    """
    max_bytes = sum(array.nbytes for array in (*blocks.keys, *blocks.values))
    shape = KvShape(num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, max_bytes=max_bytes)
    log.info(
        "attention: cpu.paged_attention over blocks, cpu.dense_attention over cohorts, head size %d, on the processor; "
        "not diverted: all families and masks go through these two",
        config.head_dim,
    )
    return DenseCaches(shape, make_slots=normal_slots(config.num_layers), blocks=blocks)


def cpu_pipeline(config: ModelConfig, *, refused: bool) -> RaggedPipeline:
    """Decoding without drafts. Both attention kernels take a length and a lead per row, with a window and without."""
    model = ModelFacts(config.family, slots=normal_slots(config.num_layers)(), masks_ragged_batches=True)
    return PlainPipeline("cpu", model=model, refused="refused by the setting `ragged`" if refused else "")


def warm_up_dense(decoder: Decoder, batch: Batch, *, dense: DenseCaches) -> None:
    """Compiles what the dense layouts need besides, on one layer; leaves no cache behind."""
    batch = dataclasses.replace(batch, layout=ALIGNED, cache_op=CACHE_RESET, slots=batch.sample.slots)
    decoder.hidden(batch, cache=dense, num_layers=1)
    dense.reset()
