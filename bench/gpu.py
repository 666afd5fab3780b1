"""`drumline bench gpu`: one command for a machine with a GPU, under five minutes: are the kernels right, and how fast is it all?"""

import gc
import json
import sys
from dataclasses import asdict
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from bench import gpu_attention, gpu_executor, gpu_kernels, gpu_transformers
from bench.gpu_config import GpuSettings
from bench.gpu_model import shape_of
from drumline import settings
from drumline.errors import DrumlineError
from executor_svc.backends.cuda.place import Emulated, Gpu, Place
from kernels.proof.catalogue import STEMS
from launcher.door import progress_bar, wide_console

_PROMPT: Final = 128
_OUTPUT: Final = 128


def main(argv: list[str]) -> int:
    """0 = measured, everything right; 1 = a kernel is wrong or a section failed; 2 = wrong settings, or no GPU."""
    wanted = settings.load(GpuSettings, section="gpu", argv=argv)
    errors = Console(stderr=True)
    try:
        place: Place = Emulated() if wanted.emulated else Gpu()
    except DrumlineError as error:
        errors.print(f"drumline bench gpu: {error.message}", style="red", markup=False, soft_wrap=True)
        return 2
    most = shape_of(wanted.shape).max_position - wanted.steps - gpu_executor.UNTIMED - 1
    if {"executor", "transformers"} & {*wanted.section} and max(wanted.context) > most:
        errors.print(f"drumline bench gpu: --context {max(wanted.context)}; shape {wanted.shape} has room for {most}", style="red")
        return 2
    results: dict[str, Any] = {"device": place.name, "torch": torch.__version__}
    peak = wanted.peak_tb_s or gpu_attention.peak_tb_s(place)
    console, wrong = wide_console(), False
    for section in wanted.section:
        table, results[section], failed = _SECTIONS[section](place, wanted, peak)
        console.print(table)
        wrong |= failed
        _free()
    if wanted.json_file:
        wanted.json_file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return int(wrong)


def _free() -> None:
    """A section's model goes before the next one's comes."""
    gc.collect()
    torch.cuda.empty_cache()


def _kernels(place: Place, wanted: GpuSettings, peak: float) -> tuple[Table, Any, bool]:
    with progress_bar(len(STEMS), "kernels") as progress:
        proven = gpu_kernels.prove_all(place, progress)
    table = Table("kernel", "cases", "wrong", title=f"kernels on {place.name}, launched and from a graph")
    for one in proven:
        table.add_row(one.stem, str(one.num_cases), "\n".join(one.wrong) or "0")
    return table, [asdict(one) for one in proven], any(one.wrong for one in proven)


def _attention(place: Place, wanted: GpuSettings, peak: float) -> tuple[Table, Any, bool]:
    lengths = [(context, context) for context in wanted.context]
    if len(wanted.context) > 1:
        lengths.append((min(wanted.context), max(wanted.context)))
    done = [gpu_attention.measure(place, num_rows=wanted.rows, least=least, most=most, peak_tb_s=peak) for least, most in lengths]
    table = Table(
        "rows", "context", "us", "TB/s", "of peak", "error", title="decode attention, one layer, GQA 4, head size 128, bf16"
    )
    for one in done:
        span = str(one.least) if one.least == one.most else f"{one.least}..{one.most}"
        share = "n/a" if one.share is None else f"{one.share:.0%}"
        table.add_row(str(one.num_rows), span, f"{one.microseconds:.1f}", f"{one.tb_s:.2f}", share, f"{one.error:.1e}")
    return table, [asdict(one) for one in done], any(one.error > 5e-3 for one in done)


def _executor(place: Place, wanted: GpuSettings, peak: float) -> tuple[Table, Any, bool]:
    longest = max(*wanted.context, _PROMPT) + max(wanted.steps, _OUTPUT) + 16
    backend = gpu_executor.backend_of(
        place, wanted.shape, rows=wanted.rows, longest=min(longest, shape_of(wanted.shape).max_position)
    )
    table = Table("rows", "context", "ms / step", "tokens/s", "of what memory allows", title=f"executor, {wanted.shape}, bf16")
    done = []
    for context in wanted.context:
        one = gpu_executor.decode(backend, wanted.shape, rows=wanted.rows, context=context, steps=wanted.steps, peak_tb_s=peak)
        share = "n/a" if one.roofline_tokens_per_s is None else f"{one.tokens_per_s / one.roofline_tokens_per_s:.0%}"
        table.add_row(str(one.num_rows), str(context), f"{one.step_ms:.2f}", f"{one.tokens_per_s:.0f}", share)
        done.append(asdict(one))
    backend.close()
    return table, done, False


def _transformers(place: Place, wanted: GpuSettings, peak: float) -> tuple[Table, Any, bool]:
    load = {"rows": wanted.rows, "num_prompt": _PROMPT, "num_output": _OUTPUT}
    backend = gpu_executor.backend_of(place, wanted.shape, rows=wanted.rows, longest=_PROMPT + _OUTPUT)
    gpu_executor.generate(backend, rows=2, num_prompt=_PROMPT, num_output=4)
    ours = gpu_executor.generate(backend, **load)
    backend.close()
    del backend
    _free()
    theirs = gpu_transformers.generate(shape_of(wanted.shape), device=place.device, **load)
    table = Table("engine", "tokens/s", title=f"{wanted.rows} prompts of {_PROMPT}, {_OUTPUT} tokens each, {wanted.shape}, bf16")
    table.add_row("executor", f"{ours.tokens_per_s:.0f}")
    table.add_row("transformers", f"{theirs.tokens_per_s:.0f}")
    table.add_row("ratio", f"{ours.tokens_per_s / theirs.tokens_per_s:.2f}")
    return table, {"executor": asdict(ours), "transformers": asdict(theirs)}, False


_SECTIONS: Final = {"kernels": _kernels, "attention": _attention, "executor": _executor, "transformers": _transformers}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
