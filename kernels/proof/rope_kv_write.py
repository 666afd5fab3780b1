"""Cases of `rope_kv_write`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernels.cpu.rope_kv_write import rope_kv_write as twin
from kernels.cuda.device import Device
from kernels.cuda.rope_kv_write import rope_kv_write
from kernels.layout import BLOCK_SIZE
from kernels.proof.case import Arrays, Case, elements, floats, poison
from kernels.proof.traffic import Bounds
from kernels.reference.rope_kv_write import rope_kv_write as reference

EPS = 1e-6
BLOCKS = 5


BOUNDS = Bounds(("bfloat16 4+2x2 heads of 128, 64 pairs, normed",))


def cases() -> Iterator[Case]:
    """Heads of several sizes, with and without norms, part of a head rotated, padding and places outside of everything."""
    yield _case("float32", heads=3, kv_heads=1, dim=64, rotary=32, normed=False)
    yield _case("float32", heads=2, kv_heads=2, dim=96, rotary=12, normed=True)
    yield _case("bfloat16", heads=4, kv_heads=2, dim=128, rotary=64, normed=True)
    yield _case("bfloat16", heads=1, kv_heads=1, dim=256, rotary=128, normed=False)


def _case(dtype: str, *, heads: int, kv_heads: int, dim: int, rotary: int, normed: bool) -> Case:
    draw = np.random.default_rng(dim)
    positions = np.array([0, 40, 7, 7, 99, 3, 2], np.int32)  # 99 is outside of the table
    slots = np.array([17, 0, -1, 79, 33, BLOCKS * BLOCK_SIZE, 48], np.int32)  # -1 is padding, BLOCKS * 16 is behind the cache
    bad = (positions == 99) | (slots == BLOCKS * BLOCK_SIZE)
    angles = draw.uniform(0, 6, (41, rotary))
    start: Arrays = {
        "qkv": elements(draw.standard_normal((7, (heads + 2 * kv_heads) * dim)), dtype),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "positions": positions,
        "slots": slots,
        "k": poison((BLOCKS, kv_heads, BLOCK_SIZE, dim), dtype),
        "v": poison((BLOCKS, kv_heads, BLOCK_SIZE, dim), dtype),
        "q": poison((7, heads, dim), dtype),
    }
    if normed:
        start |= {name: draw.uniform(0.5, 1.5, dim).astype(np.float32) for name in ("q_norm", "k_norm")}

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        rope_kv_write(
            device,
            on["qkv"],
            cos=on["cos"],
            sin=on["sin"],
            positions=on["positions"],
            slot_mapping=on["slots"],
            k=on["k"],
            v=on["v"],
            num_heads=heads,
            q_out=on["q"],
            q_norm=on.get("q_norm"),
            k_norm=on.get("k_norm"),
            eps=EPS,
        )

    keys, values = np.full((BLOCKS, kv_heads, dim, BLOCK_SIZE), np.nan), np.full((BLOCKS, kv_heads, BLOCK_SIZE, dim), np.nan)
    q = reference(
        floats(start["qkv"]).astype(np.float32),
        cos_LE=start["cos"],
        sin_LE=start["sin"],
        positions_T=np.where(bad, 0, positions).astype(np.int32),
        slot_mapping_T=np.where(bad, -1, slots).astype(np.int32),
        k_BKDP=keys,
        v_BKPD=values,
        num_heads=heads,
        q_norm_D=start.get("q_norm"),
        k_norm_D=start.get("k_norm"),
        eps=EPS,
    )
    q[bad] = np.nan
    return Case(
        name=f"{dtype} {heads}+2x{kv_heads} heads of {dim}, {rotary} pairs{', normed' if normed else ''}",
        arrays=lambda: {name: array.copy() for name, array in start.items()},
        launch=launch,
        expected={"q": q, "k": keys.swapaxes(2, 3), "v": values},
        untouched=("q", "k", "v"),
        tolerance=1e-6 if dtype == "float32" else 4e-3,
        twin=_twin if dtype == "float32" else None,
    )


def _twin(arrays: Arrays) -> Arrays:
    keys = np.ascontiguousarray(arrays["k"].swapaxes(2, 3))
    twin(
        arrays["qkv"],
        cos_LE=arrays["cos"],
        sin_LE=arrays["sin"],
        positions_T=arrays["positions"],
        slot_mapping_T=arrays["slots"],
        k_BKDP=keys,
        v_BKPD=arrays["v"],
        q_TND=arrays["q"],
        q_norm_D=arrays.get("q_norm"),
        k_norm_D=arrays.get("k_norm"),
        eps=EPS,
    )
    return {"q": arrays["q"], "k": np.ascontiguousarray(keys.swapaxes(2, 3)), "v": arrays["v"]}
