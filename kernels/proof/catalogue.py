"""All families and their cases. `tests/unit/kernels/cuda` sees to it that every function of every source is launched by one."""

from collections.abc import Callable, Iterator
from typing import Final

from kernels.proof import copy_blocks, gated_mul, layout_copy, mtp_accept, paged_attention, rms_norm, rope_kv_write, sample
from kernels.proof.case import Case
from kernels.proof.traffic import Bounds

STEMS: Final[dict[str, Callable[[], Iterator[Case]]]] = {
    "copy_blocks": copy_blocks.cases,
    "gated_mul": gated_mul.cases,
    "layout_copy": layout_copy.cases,
    "mtp_accept": mtp_accept.cases,
    "paged_attention_simt": paged_attention.simt_cases,
    "paged_attention": paged_attention.tensor_core_cases,
    "rms_norm": rms_norm.cases,
    "rope_kv_write": rope_kv_write.cases,
    "sample": sample.cases,
}
"""Family -> its cases; most have one source of the same stem."""

BOUNDS: Final[dict[str, Bounds]] = {
    "copy_blocks": copy_blocks.BOUNDS,
    "gated_mul": gated_mul.BOUNDS,
    "layout_copy": layout_copy.BOUNDS,
    "mtp_accept": mtp_accept.BOUNDS,
    "paged_attention_simt": paged_attention.SIMT_BOUNDS,
    "paged_attention": paged_attention.TENSOR_CORE_BOUNDS,
    "rms_norm": rms_norm.BOUNDS,
    "rope_kv_write": rope_kv_write.BOUNDS,
    "sample": sample.BOUNDS,
}
"""Family -> what holds for its traffic."""
