"""Accepts drafts that equal what the target chose, and lines up what rows emit."""

from functools import cache
from typing import Any

from kernels.cuda.device import Device
from kernels.cuda.spec import Array, Kernel, Scalar


@cache
def mtp_accept_kernel(*, cohort: bool) -> Kernel:
    """All rows emit as many tokens as the row that emits fewest (COHORT), or each its own (PER_SEQUENCE)."""
    threads = 256
    counts = ("num_accepted", "num_emitted", "emitted_starts", "emitted")
    return Kernel(
        source="mtp_accept",
        name="mtp_accept",
        args=(
            Array("chosen", "int32", align=4),
            Array("fed", "int32", align=4),
            Array("failed", "uint8", align=1),
            Array("starts", "int32", align=4),
            *(Array(name, "int32", "out", align=4) for name in counts),
            Scalar("rows", "int32"),
            Scalar("positions", "int32"),
        ),
        defines=(("COHORT", int(cohort)), ("THREADS", threads)),
        block=threads,
    )


def mtp_accept(
    device: Device,
    chosen: Any,
    *,
    fed: Any,
    failed: Any,
    starts: Any,
    cohort: bool,
    num_accepted: Any,
    num_emitted: Any,
    emitted_starts: Any,
    emitted: Any,
) -> None:
    """Position j of a row was chosen after its token j was fed: token 0 is known, the k tokens behind it are drafts, k may differ.

    A draft is accepted iff it and all before it equal the target's choices. A row emits the choices at accepted positions and the
    one behind them, correction or bonus; a position that failed ends both, so a row with positions that emits nothing has failed.
    It holds no cohort back.

    Args:
        chosen, fed: i32 [T], target's choices and the tokens fed. failed: u8 [T], nothing could be chosen there.
        starts: i32 [R + 1], positions of row r are starts[r] to starts[r + 1]; a row without any is padding.
        num_accepted, num_emitted: i32 [R]. With `cohort`, emitted <= accepted + 1; tokens beyond are dropped and chosen anew.
        emitted_starts, emitted: i32 [R + 1], i32 [T], tokens of row r from emitted_starts[r]; -1 behind the last row's.
    """
    arrays = (chosen, fed, failed, starts, num_accepted, num_emitted, emitted_starts, emitted)
    sizes = (num_accepted.shape[0], chosen.shape[0])
    device.launch(mtp_accept_kernel(cohort=cohort), (1,), (*arrays, *sizes))
