"""Chooses one token a row: penalties, bias, banned ends, temperature, filters, Gumbel-max."""

import numpy as np
from numpy.typing import NDArray

from kernels.layout import F32
from kernels.noise_key import GOLDEN, MIX_32, MIX_64
from kernels.sample_columns import GREEDY_BELOW, SampleColumns

F64 = NDArray[np.float64]
MASK_64 = (1 << 64) - 1


def _mix(x: int, rounds: tuple[tuple[int, int], ...], last: int, mask: int) -> int:
    for shift, factor in rounds:
        x = (x ^ (x >> shift)) * factor & mask
    return x ^ (x >> last)


def uniform(seed: int, output_pos: int, token_id: int) -> float:
    """The token's number in (0, 1); a float32."""
    once = _mix((seed + (output_pos + 1) * GOLDEN) & MASK_64, MIX_64, 31, MASK_64)
    key = _mix((once + GOLDEN) & MASK_64, MIX_64, 31, MASK_64)
    low, high, mask = key & 0xFFFFFFFF, key >> 32, 0xFFFFFFFF
    bits = _mix((_mix((token_id ^ low) & mask, MIX_32, 16, mask) + high) & mask, MIX_32, 16, mask)
    value = np.float32(np.float64(np.float32(bits)) * 2.0**-32 + 2.0**-33)
    return float(min(value, np.float32(1 - 2**-24)))


def adjusted(logits_V: F32, columns: SampleColumns, row: int) -> F64:
    """Logits after penalties (each distinct token once), bias, and banned end ids."""
    out = logits_V.astype(np.float64)
    history = columns.tokens[columns.slots[row], : columns.num_known[row]]
    output = history[columns.num_prompt[row] :]
    for token in np.unique(history):
        out[token] = (
            out[token] / columns.repetition_penalty[row] if out[token] > 0 else out[token] * columns.repetition_penalty[row]
        )
    for token, count in zip(*np.unique(output, return_counts=True), strict=True):
        out[token] -= columns.frequency_penalty[row] * count + columns.presence_penalty[row]
    bias = slice(columns.bias_start[row], columns.bias_start[row + 1])
    for token, value in zip(columns.bias_ids[bias], columns.bias_values[bias], strict=True):
        if 0 <= token < out.shape[0]:
            out[token] += value
    if columns.ban_end[row]:
        out[columns.end_ids[columns.end_start[row] : columns.end_start[row + 1]]] = -np.inf
    return out


def kept(logits_V: F64, *, temperature: float, top_k: int, top_p: float, min_p: float) -> NDArray[np.int64]:
    """Ids that the filters leave, most likely first, equal ones by id: min_p, then top_k, then top_p of what is left."""
    order = np.argsort(-logits_V, kind="stable")
    order = order[np.isfinite(logits_V[order])]
    weights = np.exp((logits_V[order] - logits_V[order[0]]) / temperature)
    keep = max(1, int((weights >= min_p).sum()))
    if top_k > 0:
        keep = min(keep, top_k)
    if top_p < 1:
        mass_before = np.cumsum(weights[:keep]) - weights[:keep]
        keep = max(1, int((mass_before < top_p * weights[:keep].sum()).sum()))
    return order[:keep]


def sample_row(logits_V: F32, *, columns: SampleColumns, row: int) -> int:
    """The chosen token of one row; `logits_V` is cut to the valid ids and finite."""
    logits = adjusted(logits_V, columns, row)
    temperature = float(columns.temperature[row])
    if temperature < GREEDY_BELOW:
        return int(np.argmax(logits))
    top_k, top_p, min_p = int(columns.top_k[row]), float(columns.top_p[row]), float(columns.min_p[row])
    ids = np.sort(kept(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p))
    noise = np.array([uniform(int(columns.seed[row]), int(columns.output_pos[row]), int(i)) for i in ids])
    return int(ids[np.argmax((logits[ids] - logits.max()) / temperature - np.log(-np.log1p(-noise)))])
