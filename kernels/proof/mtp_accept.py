"""Cases of `mtp_accept`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernels.cuda.device import Device
from kernels.cuda.mtp_accept import mtp_accept
from kernels.proof.case import Arrays, Case, poison
from kernels.proof.traffic import Bounds, Exempt
from kernels.reference.mtp_accept import mtp_accept as reference

_ROWS = "a thread walks the few positions of its row; all rows of a step are some kilobytes"
_PADDING = "padding is written by a path of its own"
BOUNDS = Bounds(
    ("per sequence, 300 rows, 1 to 5 positions", "cohort, 300 rows, 1 to 5 positions"),
    (
        Exempt("mtp_accept", "chosen", "read", 3.6, _ROWS),
        Exempt("mtp_accept", "fed", "read", 3.9, _ROWS),
        Exempt("mtp_accept", "failed", "read", 3.1, _ROWS),
        Exempt("mtp_accept", "starts", "read", 1.4, _ROWS),
        Exempt("mtp_accept", "emitted", "write", 1.8, _ROWS),
        Exempt("mtp_accept", "num_accepted", "write", 1.9, _PADDING),
        Exempt("mtp_accept", "num_emitted", "write", 1.9, _PADDING),
    ),
)


def cases() -> Iterator[Case]:
    """Rows without drafts and with up to four, padding among them, failures; more rows than threads; nothing but padding."""
    for cohort in (False, True):
        for num_rows in (1, 9, 300):
            yield _case(num_rows, cohort=cohort, fewest=1)
        yield _case(40, cohort=cohort, fewest=3)
        yield _case(5, cohort=cohort, fewest=0, most=0)


def _case(num_rows: int, *, cohort: bool, fewest: int, most: int = 5) -> Case:
    """Two of three drafts are right on average, but the first `fewest - 1` of every row always are."""
    draw = np.random.default_rng(num_rows)
    sizes = draw.integers(fewest, most + 1, num_rows)
    if num_rows > 1:
        sizes[draw.integers(0, num_rows, num_rows // 4)] = 0
        sizes[-1] = 0
    starts = np.cumsum([0, *sizes]).astype(np.int32)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    chosen = draw.integers(0, 50, starts[-1]).astype(np.int32)
    right = (draw.random(starts[-1]) < 2 / 3) | (place < fewest)
    fed = np.where(right, np.roll(chosen, 1), 50).astype(np.int32)
    failed = (draw.random(starts[-1]) < (0.1 if num_rows > 1 and fewest < 2 else 0)).astype(np.uint8)
    accepted, emitted = reference(chosen, fed=fed, failed=failed.astype(np.int32), starts=starts, cohort=cohort)
    counts = [len(tokens) for tokens in emitted]

    def arrays() -> Arrays:
        sizes = {"num_accepted": num_rows, "num_emitted": num_rows, "emitted_starts": num_rows + 1, "emitted": len(chosen)}
        outputs = {name: poison((size,), "int32") for name, size in sizes.items()}
        return {"chosen": chosen, "fed": fed, "failed": failed, "starts": starts} | outputs

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        rest = {name: array for name, array in on.items() if name != "chosen"}
        mtp_accept(device, on["chosen"], cohort=cohort, **rest)

    flat = [token for tokens in emitted for token in tokens]
    expected: Arrays = {
        "num_accepted": np.array(accepted, np.int32),
        "num_emitted": np.array(counts, np.int32),
        "emitted_starts": np.cumsum([0, *counts]).astype(np.int32),
        "emitted": np.array(flat + [-1] * (len(chosen) - len(flat)), np.int32),
    }
    name = f"{'cohort' if cohort else 'per sequence'}, {num_rows} rows, {fewest} to {most} positions"
    return Case(name=name, arrays=arrays, launch=launch, expected=expected)
