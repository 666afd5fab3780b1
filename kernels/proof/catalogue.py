"""All families and their cases. `tests/unit/kernels/cuda` sees to it that every function of every source is launched by one."""

from collections.abc import Callable, Iterator
from typing import Final

from kernels.proof import copy_blocks, gated_mul, layout_copy, mtp_accept, paged_attention, rms_norm, rope_kv_write, sample
from kernels.proof.case import Case

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
