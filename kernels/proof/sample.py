"""Cases of `sample`: winners that no rounding could change, and exact ties."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kernels.cpu import sample as twin
from kernels.cuda.device import Device
from kernels.cuda.sample import Sampler
from kernels.layout import F32
from kernels.proof.case import Arrays, Case, elements, floats, poison
from kernels.proof.sample_rows import RowState, columns_of
from kernels.proof.traffic import Bounds, Exempt
from kernels.reference.sample import adjusted, sample_row

FILTERS: tuple[dict[str, float], ...] = (
    {"top_k": 2}, {"top_k": 1}, {"top_p": 0.3}, {"top_p": 0.0}, {"min_p": 0.4}, {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.5, "min_p": 0.01}, {"top_k": 5, "top_p": 0.4}, {"top_k": 10**9, "top_p": 0.9},
    {"min_p": 0.2, "top_k": 3},
)  # fmt: skip
PENALTIES = {"repetition_penalty": 1.7, "presence_penalty": 0.6, "frequency_penalty": 0.4}
ODD = (1003, 1000)
"""Pitch that is no multiple of a vector, and valid ids that do not reach it."""
EVEN = (520, 500)


_EDITS = "a thread lists the edited ids of one word of the map, a few thousand a row at most"
BOUNDS = Bounds(
    ("filters, bfloat16", "penalties, bias and bans, bfloat16"),
    (
        Exempt("sample", "edit_ids", "write", 3.3, _EDITS),
        Exempt("sample", "edit_counts", "write", 3.3, _EDITS),
        Exempt("sample", "edit_values", "write", 2.7, _EDITS),
        Exempt("sample", "edit_ids", "read", 1.3, "the lists begin where the row's history does, not at a sector"),
        Exempt("sample", "edit_counts", "read", 1.3, "the same"),
        Exempt("sample", "edit_values", "read", 1.35, "the same, and ids of a bias are in no order"),
        Exempt("sample", "logits", "read", 1.3, "logits of edited ids, one by one; the passes over a row ask for nothing in vain"),
    ),
)


def cases() -> Iterator[Case]:
    """Rows of every kind, in few vocabularies: each is a kernel to compile."""
    yield _case("greedy", "float32", ODD, _spread(8, 1000), [RowState({"temperature": 1e-6 * (i % 2)}) for i in range(8)])
    yield _case("greedy, bfloat16 ties", "bfloat16", EVEN, np.round(_spread(6, 500)), [RowState()] * 6)
    yield _case("temperature", "float32", ODD, _spread(16, 1000), _drawn(16, [{}, {"temperature": 0.3}, {"temperature": 40.0}]))
    yield _case("tiny temperature", "float32", ODD, _spread(4, 1000) * 1e-4, _drawn(4, [{"temperature": 2e-5}]))
    yield _case("filters", "float32", ODD, _spread(40, 1000), _drawn(40, FILTERS))
    yield _case("filters, bfloat16", "bfloat16", EVEN, _spread(20, 500), _drawn(20, FILTERS))
    yield _case("filters among equals", "float32", ODD, np.zeros((40, 1000)), _drawn(40, FILTERS))
    yield _case("filters among few values", "bfloat16", EVEN, np.round(_spread(20, 500) / 3), _drawn(20, FILTERS))
    for dtype, vocabulary, logits in (("float32", ODD, _spread(24, 1000)), ("bfloat16", EVEN, _spread(12, 500))):
        yield _case(f"penalties, bias and bans, {dtype}", dtype, vocabulary, logits, _changed(logits))
    yield _failures()
    yield _case("padding", "float32", ODD, _spread(9, 1000), _drawn(5, FILTERS), rows=(8, 0, 3, 3, 5), num_records=7)
    yield _large()


def _large() -> Case:
    """More ids than 15 bits count, many to a thread. In the last rows one id is 8,000 times as likely as each of the others, and
    yet no fifth of them all: their masses are small numbers of which many make the sum.
    """
    options: list[dict[str, float]] = [{}, FILTERS[6], PENALTIES, {"top_k": 3}, {"top_p": 1e-4}]
    options += [{"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.0, "top_p": 0.7}]
    logits = np.concatenate([_spread(3, 40001), np.full((4, 40001), -1.5, np.float32)])
    logits[5:, 777] = 7.5
    return _case("large", "float32", (40001, 40001), logits, _drawn(7, options))


def _spread(*shape: int) -> F32:
    return (np.random.default_rng(shape[-1]).standard_normal(shape) * 3).astype(np.float32)


def _drawn(num_rows: int, options: Sequence[Mapping[str, float]]) -> list[RowState]:
    """Rows with a temperature and the options in turn; seeds over their whole range."""
    neutral = {"temperature": 0.8}
    return [
        RowState(neutral | {"seed": (i * 0x9E3779B97F4A7C15) % 2**64, "output_pos": 7 * i} | dict(options[i % len(options)]))
        for i in range(num_rows)
    ]


def _changed(logits: F32) -> list[RowState]:
    """Each penalty, a bias and a ban alone and all at once, of the likeliest tokens; greedy and drawn; ids that do not exist."""
    num_valid = logits.shape[1]
    draw = np.random.default_rng(num_valid)
    kinds = [{name: value} for name, value in PENALTIES.items()] + [
        {"ban_end": 1.0},
        {},
        PENALTIES | {"ban_end": 1.0, "top_p": 0.9},
    ]
    rows = []
    for i, likeliest in enumerate(np.argsort(-logits, axis=1)[:, :12]):
        bias = {int(token): 3.0 - n for n, token in enumerate(draw.permutation(likeliest)[:5])}
        rows.append(
            RowState(
                {"temperature": 0.7 * (i // 6 % 2), "seed": i, "output_pos": i} | kinds[i % 6],
                prompt=draw.choice(likeliest, 5).tolist(),
                output=[*draw.choice(likeliest, 8).tolist(), *range(100, 200)],
                bias=bias | {num_valid: 90.0, -1: 90.0} if i % 6 > 3 else {},
                end_ids=draw.choice(likeliest, 3).tolist(),
            )
        )
    return rows


def _failures() -> Case:
    """Rows that are not finite, first and last id, a bias without bounds, and everything banned; others beside them."""
    logits = _spread(9, 1000)
    for row, (place, value) in enumerate([(0, np.nan), (999, np.inf), (500, -np.inf), (31, np.nan)]):
        logits[2 * row, place] = value
    rows = _drawn(9, [{}, {"top_k": 3}, {"temperature": 0.0}])
    values = {"temperature": 1.0, "ban_end": 1.0, "top_p": 0.5}
    rows[5] = RowState(values, end_ids=range(1000))
    rows[6] = RowState(values, end_ids=[31], prompt=[31], bias={31: 5.0})
    rows[7] = RowState({"temperature": 1.0}, bias={400: np.inf})
    return _case("failures", "float32", ODD, logits, rows)


def _case(
    name: str,
    dtype: str,
    vocabulary: tuple[int, int],
    valid: Any,
    states: Sequence[RowState],
    *,
    rows: Sequence[int] | None = None,
    num_records: int | None = None,
) -> Case:
    """`valid` [rows, valid ids]: the logits, padded by what would win if it were looked at, and NaN."""
    vocab_size, num_valid = vocabulary
    logits = np.full((valid.shape[0], vocab_size), np.nan, np.float32)
    logits[::2, num_valid:] = 1e30
    logits[:, :num_valid] = valid
    logits = elements(logits, dtype)
    num_records = num_records or len(states)
    picked = np.arange(len(states), dtype=np.int32) if rows is None else np.array(rows, np.int32)
    columns = columns_of(states)
    sampler = Sampler(vocab_size=vocab_size, num_valid=num_valid, dtype=dtype, max_rows=num_records, max_words=20000)

    def arrays() -> Arrays:
        inputs = poison(*sampler.inputs)
        words = sampler.pack(columns, rows=picked, num_records=num_records)
        inputs[: len(words)] = words
        outputs = {"token_ids": poison((num_records,), "int32"), "failed": poison((num_records,), "uint8")}
        return {"logits": logits, "inputs": inputs} | outputs | {name: poison(*of) for name, of in sampler.workspace.items()}

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        sampler.sample(
            device, on["logits"], inputs=on["inputs"], workspace=dict(on), token_ids=on["token_ids"], failed=on["failed"]
        )

    def by_twin(_: Arrays) -> Arrays:
        chosen, scores = twin.sample(floats(logits)[picked].astype(np.float32), columns=columns, num_valid=num_valid)
        return _padded(chosen, scores.failed, num_records)

    exact = floats(logits)[picked][:, :num_valid].astype(np.float32)
    with np.errstate(invalid="ignore"):
        changed = np.array([adjusted(exact[i], columns, i).max() for i in range(len(states))])
    failed = ~np.isfinite(exact).all(1) | ~np.isfinite(changed)
    chosen = np.array([0 if failed[i] else sample_row(exact[i], columns=columns, row=i) for i in range(len(states))])
    return Case(name=name, arrays=arrays, launch=launch, expected=_padded(chosen, failed, num_records), twin=by_twin)


def _padded(token_ids: Any, failed: Any, num_records: int) -> Arrays:
    more = num_records - len(token_ids)
    return {"token_ids": np.pad(token_ids.astype(np.int32), (0, more)), "failed": np.pad(failed.astype(np.uint8), (0, more))}
