"""`drumline bench perplexity`: perplexity of a fixed text at every precision, from the executor's own prompt scores."""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench.perplexity_config import PerplexitySettings
from bench.report import NA, machine
from drumline import settings
from drumline.errors import DrumlineError, InvalidRequest
from drumline.version import SOFTWARE_VERSION
from executor_svc.backends.base import Backend
from executor_svc.backends.warm_up import plain_batch
from launcher.door import progress_bar, wide_console

Ids = NDArray[np.int32]
REFERENCE = "f32"


@dataclass(frozen=True, slots=True)
class Figure:
    """One precision. `perplexity` is exp of the mean negative log-probability (natural) of `num_predicted` tokens."""

    precision: str
    kv_cache_dtype: str
    kernels: tuple[str, ...]
    perplexity: float
    num_predicted: int
    seconds: float


def main(argv: list[str]) -> int:
    """0 = measured and printed; 1 = the model cannot be run as asked, or the text is shorter than a window; 2 = wrong settings."""
    wanted = settings.load(PerplexitySettings, section="perplexity", argv=argv)
    try:
        text = wanted.text.read_text(encoding="utf-8")
        figures = measure(wanted, text)
    except (DrumlineError, OSError, UnicodeDecodeError) as error:
        Console(stderr=True).print(f"drumline bench perplexity: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    wide_console().print(table_of(figures, title=f"{wanted.model or 'SmolLM2-135M-Instruct'}, {machine()}"))
    if wanted.json_file:
        wanted.json_file.write_text(json_of(figures, wanted=wanted, text=text), encoding="utf-8")
    return 0


def measure(wanted: PerplexitySettings, text: str) -> list[Figure]:
    """One precision after the other, each on a backend of its own. Raises DrumlineError."""
    figures = []
    with progress_bar(len(wanted.precision), "perplexity") as overall:
        for done, precision in enumerate(wanted.precision):
            figures.append(_measure(wanted, text, precision=precision))
            overall(done + 1)
    return figures


def _measure(wanted: PerplexitySettings, text: str, *, precision: str) -> Figure:
    # not before: what is wrong with the settings should be told at once, and these take seconds
    from tokenizers import Tokenizer

    from executor_svc.backends.cpu import CpuBackend
    from executor_svc.config import ExecutorSettings
    from kernels.layout import BLOCK_SIZE

    told = {"model": wanted.model, "precision": precision, "num_threads": wanted.num_threads, "max_model_len": wanted.window}
    backend = CpuBackend(
        ExecutorSettings.model_validate(
            told | {"num_blocks": -(-wanted.window // BLOCK_SIZE), "max_num_batched_tokens": wanted.window}
        )
    )
    try:
        ids = Tokenizer.from_buffer(backend.model.tokenizer_json).encode(text, add_special_tokens=False).ids
        windows = windows_of(ids, size=wanted.window, most=wanted.num_windows)
        started_s = time.perf_counter()
        scores = []
        with progress_bar(len(windows), backend.info.precision) as progress:
            for index, window in enumerate(windows):
                scores.append(_score(backend, window))
                progress(index + 1)
        logprobs = np.concatenate(scores)
        return Figure(
            precision=backend.info.precision,
            kv_cache_dtype=backend.info.kv_cache_dtype,
            kernels=backend.info.kernels,
            perplexity=math.exp(-float(logprobs.mean(dtype=np.float64))),
            num_predicted=len(logprobs),
            seconds=time.perf_counter() - started_s,
        )
    finally:
        backend.close()


def windows_of(ids: Sequence[int], *, size: int, most: int) -> list[Ids]:
    """Whole windows from the beginning, at most `most` of them, 0 = all. Raises InvalidRequest when there is not one."""
    windows = [np.array(ids[first : first + size], np.int32) for first in range(0, len(ids) - size + 1, size)]
    if not windows:
        raise InvalidRequest(f"the text has {len(ids)} tokens, a window has {size}")
    return windows[: most or None]


def _score(backend: Backend, window: Ids) -> NDArray[np.float32]:
    """Log-probabilities of all tokens of a window but its first."""
    batch = dataclasses.replace(
        plain_batch(len(window), block_size=backend.info.block_size),
        token_ids=window,
        prompt_target_start=np.array([0, len(window) - 1], np.int32),
        prompt_targets=window[1:],
    )
    return backend.forward(batch).prompt_logprobs[0].logprobs


def ratios(figures: Sequence[Figure]) -> list[float | None]:
    """Perplexity of each over that of float32; None where float32 was not measured."""
    reference = next((figure.perplexity for figure in figures if figure.precision == REFERENCE), None)
    return [None if reference is None else figure.perplexity / reference for figure in figures]


def table_of(figures: Sequence[Figure], *, title: str) -> Table:
    """For a terminal."""
    table = Table(title=title, title_justify="left")
    for name in ("precision", "keys and values", "perplexity", "over f32", "tokens predicted", "s"):
        table.add_column(name, justify="left" if name == "precision" else "right")
    for figure, ratio in zip(figures, ratios(figures), strict=True):
        over = NA if ratio is None else f"{100 * (ratio - 1):+.2f} %"
        cells = (f"{figure.perplexity:.3f}", over, str(figure.num_predicted), f"{figure.seconds:.1f}")
        table.add_row(figure.precision, figure.kv_cache_dtype, *cells)
    return table


def json_of(figures: Sequence[Figure], *, wanted: PerplexitySettings, text: str) -> str:
    """Everything, with what it was measured on: figures of different texts or windows say nothing about each other."""
    about: Mapping[str, object] = {
        "version": SOFTWARE_VERSION,
        "machine": machine(),
        "model": wanted.model,
        "window": wanted.window,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    rows = [dataclasses.asdict(one) | {"ratio": ratio} for one, ratio in zip(figures, ratios(figures), strict=True)]
    return json.dumps({**about, "figures": rows}, indent=2) + "\n"
