"""Settings of `drumline bench step`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from drumline.settings import ServiceSettings


class StepSettings(ServiceSettings):
    """What one step in steady decode costs the scheduler, wire included, and how that grows with rows.

    A real scheduler process stands between an executor without a model and a gateway that reads every token, each a process of its
    own, over gRPC. CPU per step is the whole scheduler process (core with prefix caching, recording ring, gRPC's threads, delivery)
    from one result to the next.
    """

    rows: tuple[Annotated[int, Field(ge=1, le=16_384)], ...] = Field(
        default=(32, 64, 128, 256, 512, 1024, 2048, 4096), min_length=1, description="Rows that decode together; repeat it."
    )
    steps: int = Field(default=600, ge=150, le=100_000, description="Steps for each number of rows; the first 100 do not count.")
    step_ms: float = Field(
        default=0.0, ge=0, le=1000, description="Time that a step takes on the executor, ms; 0 = it answers at once."
    )
    json_file: Path | None = Field(default=None, description="Write all figures there, as JSON.")
    plot: Path | None = Field(default=None, description="Draw the growth there; .png, .svg or .pdf.")
