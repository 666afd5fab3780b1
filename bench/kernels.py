"""Kernels of the CPU against torch in the same run: `python -m bench.kernels [--threads N]`.

A line is the best of several rounds, so that a busy machine disturbs it least, with the ratio to a peer measured beside it.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from kernels.cpu.after_attention import AfterAttention, Workspace, after_attention
from kernels.cpu.crew import set_num_threads
from kernels.cpu.gated_mul import gelu_mul, silu_mul
from kernels.cpu.integer_linear import integer_linear, packed, rotated
from kernels.cpu.paged_attention import paged_attention
from kernels.cpu.rms_norm import add_rms_norm, rms_norm
from kernels.cpu.sample import sample
from kernels.group_weights import GROUP, GroupWeights
from kernels.layout import BLOCK_SIZE, F32, cache_shapes
from kernels.packed_weights import PackedWeights

HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
"""SmolLM2-135M."""


def best_s(run: Callable[[], object], *, rounds: int = 15) -> float:
    """Seconds of the fastest round after one that warms up."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def in_turn(run: Callable[[], object], peer: Callable[[], object], *, rounds: int = 25) -> tuple[float, float]:
    """(median seconds of `run`, median ratio of the peer's time to it round by round): for runs too long to meet a quiet moment."""
    times, ratios = [], []
    for _ in range(rounds):
        times.append(best_s(run, rounds=1))
        ratios.append(best_s(peer, rounds=1) / times[-1])
    return statistics.median(times), statistics.median(ratios)


@dataclass(frozen=True)
class Rows:
    """A ragged batch on a scattered cache, and the same keys and values as torch wants them, a tensor a row."""

    q: F32
    context_len: "np.ndarray[tuple[int], np.dtype[np.int32]]"
    query_start: "np.ndarray[tuple[int], np.dtype[np.int32]]"
    tables: "np.ndarray[tuple[int, int], np.dtype[np.int32]]"
    k: F32
    v: F32
    dense: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]

    def ours(self) -> F32:
        """One call for the whole batch."""
        out = np.empty_like(self.q)
        paged_attention(
            self.q, k_BKDP=self.k, v_BKPD=self.v, query_start_R=self.query_start, context_len_R=self.context_len,
            block_tables_RW=self.tables, scale=HEAD_DIM**-0.5, out_TND=out,
        )  # fmt: skip
        return out

    def peer(self) -> list[torch.Tensor]:
        """scaled_dot_product_attention row by row, on keys and values that somebody gathered for free."""
        attention = torch.nn.functional.scaled_dot_product_attention
        return [attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True) for q, k, v in self.dense]


def ragged(lengths: list[int], *, num_tokens: int) -> Rows:
    """Rows of these context lengths that feed their last tokens (1 = decode, the length = prefill)."""
    rng = np.random.default_rng(0)
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    key_shape, value_shape = cache_shapes(sum(counts), num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    k, v = rng.standard_normal(key_shape, np.float32), rng.standard_normal(value_shape, np.float32)
    blocks = np.split(rng.permutation(sum(counts)).astype(np.int32), np.cumsum(counts)[:-1])
    tables = np.full((len(lengths), max(counts)), -1, np.int32)
    q = rng.standard_normal((len(lengths) * num_tokens, HEADS, HEAD_DIM), np.float32)
    dense = []
    for row, (length, mine) in enumerate(zip(lengths, blocks, strict=True)):
        tables[row, : len(mine)] = mine
        queries = q[row * num_tokens : (row + 1) * num_tokens].transpose(1, 0, 2)
        keys = k[mine].transpose(1, 0, 3, 2).reshape(KV_HEADS, -1, HEAD_DIM)[:, :length]
        values = v[mine].transpose(1, 0, 2, 3).reshape(KV_HEADS, -1, HEAD_DIM)[:, :length]
        tensors = [torch.from_numpy(np.ascontiguousarray(array))[None] for array in (queries, keys, values)]
        dense.append((tensors[0], tensors[1], tensors[2]))
    starts = (np.arange(len(lengths) + 1) * num_tokens).astype(np.int32)
    return Rows(q, np.array(lengths, np.int32), starts, tables, k, v, dense)


def decode_line() -> str:
    """32 decode rows with contexts 32..2048."""
    rows = ragged([int(n) for n in np.random.default_rng(1).integers(32, 2049, 32)], num_tokens=1)
    ours, peer = best_s(rows.ours), best_s(rows.peer)
    num_bytes = int(rows.context_len.sum()) * KV_HEADS * HEAD_DIM * 2 * 4
    speed = f"{num_bytes / ours / 1e9:7.1f} GB/s {32 / ours / 1e3:8.1f} k tokens/s"
    return f"decode, 32 rows of 32..2048 keys   {ours * 1e3:8.2f} ms {speed}  {peer / ours:5.1f} x torch SDPA"


def prefill_line(length: int) -> str:
    """One whole prompt."""
    rows = ragged([length], num_tokens=length)
    ours, peer = best_s(rows.ours), best_s(rows.peer)
    flops = 4 * HEADS * HEAD_DIM * length * (length + 1) / 2
    speed = f"{flops / ours / 1e9:7.1f} GFLOP/s {length / ours / 1e3:5.0f} k tokens/s"
    return f"prefill, {length:4} tokens               {ours * 1e3:8.2f} ms {speed}  {peer / ours:5.1f} x torch SDPA"


def elementwise_lines() -> list[str]:
    """Norm and activation of 32 rows."""
    rng = np.random.default_rng(0)
    x, weight, gate_up = (
        rng.standard_normal((32, 576), np.float32),
        np.ones(576, np.float32),
        rng.standard_normal((32, 3072), np.float32),
    )
    out, wide = np.empty_like(x), np.empty((32, 1536), np.float32)
    x_t, weight_t, gate, up = torch.from_numpy(x), torch.from_numpy(weight), *torch.from_numpy(gate_up).chunk(2, -1)
    norm = best_s(lambda: rms_norm(x, weight_H=weight, eps=1e-5, out_TH=out), rounds=200)
    norm_peer = best_s(lambda: torch.nn.functional.rms_norm(x_t, (576,), weight_t, 1e-5), rounds=200)
    silu = best_s(lambda: silu_mul(gate_up, out_TI=wide), rounds=200)
    silu_peer = best_s(lambda: torch.nn.functional.silu(gate) * up, rounds=200)
    gelu = best_s(lambda: gelu_mul(gate_up, out_TI=wide), rounds=200)
    gelu_peer = best_s(lambda: torch.nn.functional.gelu(gate, approximate="tanh") * up, rounds=200)
    return [
        f"rms_norm, 32 x 576                 {norm * 1e6:8.0f} us {norm_peer / norm:18.1f} x torch",
        f"silu_mul, 32 x 1536                {silu * 1e6:8.0f} us {silu_peer / silu:18.1f} x torch",
        f"gelu_mul, 32 x 1536                {gelu * 1e6:8.0f} us {gelu_peer / gelu:18.1f} x torch",
    ]


def four_bits(num_out: int, num_in: int) -> PackedWeights:
    """Random codes."""
    scale = np.full((num_out, num_in // GROUP), 0.01, np.float16)
    codes = np.random.default_rng(num_out).integers(0, 16, (num_out, num_in)).astype(np.uint8)
    return packed(GroupWeights(codes, scale, scale * np.float16(-7.5)))


def turned(num_out: int, num_in: int) -> PackedWeights:
    """Random rotated rows."""
    return packed(rotated(np.random.default_rng(num_out).standard_normal((num_out, num_in), np.float32)))


def layer_line(num_rows: int, make: Callable[[int, int], PackedWeights], named: str) -> str:
    """Thirty layers between attentions, in one call each and part by part."""
    one = np.ones(576, np.float32)
    shapes = {"out": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "qkv": (960, 576)}
    matrices = [{name: make(*shape) for name, shape in shapes.items()} for _ in range(30)]
    layers = [
        AfterAttention(
            out=parts["out"], gate_up=parts["gate_up"], down=parts["down"], qkv=parts["qkv"], post_norm=one, next_norm=one, eps=1e-5
        )
        for parts in matrices
    ]
    space = Workspace.of(num_rows, attended=576, hidden=576, intermediate=1536, qkv=960)
    attended = np.random.default_rng(0).standard_normal((num_rows, 576), np.float32)
    residual, x, part = (np.zeros_like(attended) for _ in range(3))
    gate_up, gated, qkv = (np.empty((num_rows, width), np.float32) for width in (3072, 1536, 960))

    def whole() -> None:
        for layer in layers:
            after_attention(attended, residual_TH=residual, layer=layer, workspace=space)

    def part_by_part() -> None:
        for weights in matrices:
            integer_linear(attended, weights=weights["out"], out_MN=part)
            add_rms_norm(part, residual_TH=residual, weight_H=one, eps=1e-5, out_TH=x)
            integer_linear(x, weights=weights["gate_up"], out_MN=gate_up)
            silu_mul(gate_up, out_TI=gated)
            integer_linear(gated, weights=weights["down"], out_MN=part)
            add_rms_norm(part, residual_TH=residual, weight_H=one, eps=1e-5, out_TH=x)
            integer_linear(x, weights=weights["qkv"], out_MN=qkv)

    ours, ratio = in_turn(whole, part_by_part)
    return f"after_attention, {named}, {num_rows:2} rows x 30 {ours * 1e3:7.2f} ms {ratio:18.2f} x its parts, median in turn"


class Columns:
    """Sampling columns of `num_rows` rows, neutral but for `changes`."""

    def __init__(self, num_rows: int, **changes: float) -> None:
        zeros, ones = np.zeros(num_rows, np.int32), np.ones(num_rows, np.float32)
        self.slots, self.top_k, self.output_pos, self.num_prompt, self.num_known, self.num_top = (zeros.copy() for _ in range(6))
        self.temperature, self.presence_penalty, self.frequency_penalty, self.min_p = (zeros.astype(np.float32) for _ in range(4))
        self.top_p, self.repetition_penalty = ones.copy(), ones.copy()
        self.seed = np.arange(num_rows, dtype=np.uint64)
        self.ban_end, self.want_logprobs = np.zeros(num_rows, np.bool_), np.zeros(num_rows, np.bool_)
        self.tokens = np.zeros((1, 1), np.int32)
        self.end_start, self.bias_start = (np.zeros(num_rows + 1, np.int32) for _ in range(2))
        self.end_ids, self.bias_ids = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.bias_values = np.zeros(0, np.float32)
        for name, value in changes.items():
            getattr(self, name)[:] = value


def sampler_lines() -> list[str]:
    """32 rows over 49,152 ids, against torch doing the same to the whole batch."""
    logits = (np.random.default_rng(0).standard_normal((32, 49152)) * 3).astype(np.float32)
    tensor = torch.from_numpy(logits)

    def peer(top_p: float) -> torch.Tensor:
        probabilities = torch.softmax(tensor / 0.7, -1)
        if top_p < 1:
            ordered, ids = probabilities.sort(-1, descending=True)
            ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
            return ids.gather(-1, torch.multinomial(ordered, 1))
        return torch.multinomial(probabilities, 1)

    lines = []
    cases: list[tuple[str, dict[str, float], Callable[[], object]]] = [
        ("greedy", {}, lambda: tensor.argmax(-1)),
        ("temperature", {"temperature": 0.7}, lambda: peer(1.0)),
        ("top_p 0.9", {"temperature": 0.7, "top_p": 0.9}, lambda: peer(0.9)),
        (
            "top_k 50",
            {"temperature": 0.7, "top_k": 50},
            lambda: torch.multinomial(torch.softmax(tensor.topk(50).values / 0.7, -1), 1),
        ),
        ("logprobs 5", {"want_logprobs": 1, "num_top": 5}, lambda: torch.log_softmax(tensor, -1).topk(5)),
    ]
    for name, changes, reference in cases:
        columns = Columns(32, **changes)
        ours = best_s(lambda columns=columns: sample(logits, columns=columns, num_valid=49152))  # type: ignore[misc]
        lines.append(f"sample, 32 x 49152, {name:14} {ours * 1e6:8.0f} us {best_s(reference, rounds=5) / ours:18.1f} x torch")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Prints one line a kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of the kernels and of torch")
    threads = parser.parse_args(argv).threads
    set_num_threads(threads)
    torch.set_num_threads(threads)
    print(f"{threads} threads; heads {HEADS}/{KV_HEADS} x {HEAD_DIM}, float32, best round")
    kinds = ((four_bits, "in groups"), (turned, "rotated"))
    layers = (layer_line(num_rows, *kind) for kind in kinds for num_rows in (1, 8, 32))
    lines = (decode_line(), prefill_line(128), prefill_line(1024), *layers)
    for line in (*lines, *elementwise_lines(), *sampler_lines()):
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
