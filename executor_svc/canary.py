"""One token that nobody asked for, to learn whether a device that kept failing works again."""

import numpy as np

from executor_svc.backends.base import BackendInfo, ModelInfo
from executor_svc.batch import Assembler
from executor_svc.plan import CACHE_NOTHING, I32, PAGED, PER_SEQUENCE, PREFILL_LAST, Batch, NewSequence, Plan, Sampling
from executor_svc.slots import SlotLimits, Slots


def canary_batch(model: ModelInfo, info: BackendInfo) -> Batch:
    """Feeds token 0 into block 0 and samples one token greedily. Only for a cache that nobody needs."""
    limits = SlotLimits(
        num_slots=1,
        max_model_len=2,
        max_num_batched_tokens=1,
        block_size=info.block_size,
        num_blocks=1,
        vocab_size=model.vocab_size,
        eos_token_ids=(),
    )
    none, zero, one = _column(), _column(0), _column(1)
    plan = Plan(
        step_id=1,
        session_epoch=0,
        grant_id=0,
        cohort_id=0,
        cache_op=CACHE_NOTHING,
        layout=PAGED,
        advance=PER_SEQUENCE,
        freed_slots=[],
        aborted_slots=[],
        new_sequences=[NewSequence(0, zero, num_prompt_tokens=1, num_cached_tokens=0, sampling=Sampling(max_tokens=1))],
        repeat_rows=False,
        slots=zero,
        row_kinds=_column(PREFILL_LAST),
        num_tokens=one,
        starts=zero,
        block_rows=zero,
        block_ids=zero,
        copy_src=none,
        copy_dst=none,
    )
    return Assembler(Slots(limits)).apply(plan).batch


def _column(*values: int) -> I32:
    return np.array(values, np.int32)
