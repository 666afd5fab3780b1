"""The whole executor on a model with random weights: prefill, then decode steps, beside what the memory allows."""

import statistics
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.gpu_load import Steps
from bench.gpu_model import random_model, shape_of, weight_bytes
from executor_svc.backends.cuda.backend import CudaBackend
from executor_svc.backends.cuda.place import Place
from executor_svc.config import ExecutorSettings

UNTIMED: Final = 5
"""Steps before those that are timed."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decode steps of R rows with so many tokens in each cache.

    Attributes:
        tokens_per_s: R over the median step.
        roofline_tokens_per_s: when weights, keys and values are read once at peak and nothing else
            takes time; None = peak not known.
    """

    num_rows: int
    context: int
    step_ms: float
    tokens_per_s: float
    roofline_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Generated:
    """Prompts in, outputs out, everything between: output tokens over the time of all of it."""

    num_rows: int
    num_prompt: int
    num_output: int
    tokens_per_s: float


def backend_of(place: Place, shape: str, *, rows: int, longest: int, batched: int = 8192) -> CudaBackend:
    """A backend for so many rows of so many tokens."""
    blocks = rows * -(-longest // 16) + 1
    told = ExecutorSettings(max_num_seqs=rows, max_num_batched_tokens=max(batched, rows), max_model_len=longest, num_blocks=blocks)
    return CudaBackend(random_model(shape), told, place)


def decode(backend: CudaBackend, shape: str, *, rows: int, context: int, steps: int, peak_tb_s: float) -> Decoded:
    """Rows that claim to have a cached prompt: what lies in their blocks costs the same whatever it is."""
    drawn = np.random.default_rng(0)
    prompts = [drawn.integers(0, backend.model.vocab_size, context).astype(np.int32) for _ in range(rows)]
    run = Steps(backend, prompts, num_cached=context - 1, num_output=steps + UNTIMED + 1)
    run.prefill()
    run.decode(UNTIMED)
    step_s = statistics.median(run.decode(steps))
    config = shape_of(shape)
    read = weight_bytes(config, bytes_each=2) + rows * context * config.num_layers * config.num_kv_heads * config.head_dim * 2 * 2
    roofline = rows / (read / (peak_tb_s * 1e12)) if peak_tb_s else None
    return Decoded(rows, context, step_s * 1e3, rows / step_s, roofline)


def generate(backend: CudaBackend, *, rows: int, num_prompt: int, num_output: int) -> Generated:
    """All rows arrive at once."""
    drawn = np.random.default_rng(1)
    prompts = [drawn.integers(0, backend.model.vocab_size, num_prompt).astype(np.int32) for _ in range(rows)]
    run = Steps(backend, prompts, num_cached=0, num_output=num_output)
    began = time.perf_counter()
    run.prefill()
    run.decode(num_output - 1)
    return Generated(rows, num_prompt, num_output, rows * num_output / (time.perf_counter() - began))
