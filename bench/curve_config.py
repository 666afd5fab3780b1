"""Settings of `drumline bench curve`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from bench.price_config import Length
from drumline.settings import ServiceSettings

SMOKE = {
    "batch": (3,),
    "prompt_tokens": (4, 8, 16),
    "output_tokens_min": 6,
    "output_tokens_max": 10,
    "warm_up_s": 0.0,
    "steady_s": 1.0,
    "min_requests": 1,
    "cell_timeout_s": 300.0,
}


class CurveSettings(ServiceSettings):
    """Does throughput collapse when lengths differ, and does it with batch size? Four arms, each at several numbers of workers.

    A: bucketed, uniform lengths. B: bucketed, mixed. C: ragged, uniform. D: ragged, mixed. Every cell gets fresh services. The
    number is tokens/s mixed over uniform, against the number of workers. A run of hours, out of a terminal's reach:
        setsid nohup drumline bench curve --out curve < /dev/null > curve.log 2>&1 &
        tail -f curve/status
    """

    batch: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        default=(1, 8, 32, 64, 128), min_length=1, description="Workers, each with one request at a time; repeat it."
    )
    prompt_tokens: tuple[Length, ...] = Field(
        default=(16, 32, 64, 128, 256),
        min_length=2,
        description="Prompt lengths of the mixed arms; repeat it. Uniform arms get their mean. The request's own are powers of 2 "
        "from 32 to 2048: 128 such rows need a machine with 60 GB.",
    )
    output_tokens_min: Length = Field(default=64, description="Fewest tokens of an answer in the mixed arms.")
    output_tokens_max: Length = Field(
        default=128, description="Most tokens of an answer in the mixed arms; uniform arms get the mean."
    )
    layout: Literal["aligned", "stripped"] = Field(default="aligned", description="How executors keep a cohort, in all four arms.")
    max_num_seqs: int = Field(default=256, ge=1, le=65536, description="Most sequences resident; must not bound any cell.")
    warm_up_s: float = Field(default=20.0, ge=0, description="Least time before the steady window, seconds.")
    steady_s: float = Field(
        default=45.0,
        gt=0,
        description="Least length of the steady window, seconds; it lasts until every worker has finished another request.",
    )
    min_requests: int = Field(
        default=20, ge=1, description="Least requests finished in the window by all workers together: so few are still all lengths."
    )
    cell_timeout_s: float = Field(default=3600.0, gt=0, description="A cell that takes longer than this is NA.")
    seed: int = Field(default=1000, ge=0, description="Worker number N draws its lengths and words from seed + N.")
    tolerance: float = Field(
        default=0.10, gt=0, lt=1, description="Rates that differ by less are called equal: cells of one run differ by that much."
    )
    model: str = Field(default="", description="Hugging Face folder or GGUF file; none = SmolLM2-135M-Instruct.")
    precision: str = Field(default="auto", description="Arithmetic of the executor, for example f32 or int8.")
    backend: str = Field(default="cpu", description="cpu, or fake: no model, and no figure that means anything.")
    preflight: str = Field(default="", description="Command to run first, a check of the machine; if it fails nothing is measured.")
    out: Path = Field(default=Path("curve"), description="Folder for results.tsv, results.json, curve.png, summary.txt and logs.")
    status_file: Path | None = Field(default=None, description="One line per event, readable while it runs; none = OUT/status.")
    smoke: bool = Field(default=False, description="Arms B and D with 3 workers, a second each: does everything, measures nothing.")


def shrunk(wanted: CurveSettings) -> CurveSettings:
    """What `--smoke` makes of the settings."""
    return wanted.model_copy(update=SMOKE) if wanted.smoke else wanted
