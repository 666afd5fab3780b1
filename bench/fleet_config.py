"""Settings of `drumline bench fleet`."""

from pathlib import Path

from pydantic import Field

from drumline.settings import ServiceSettings


class FleetSettings(ServiceSettings):
    """How many executors one scheduler keeps busy on this machine, which also runs the executors and the gateway that reads.

    A real scheduler process stands between executors without a model, whose steps take a fixed time, and a gateway that reads every
    token. The fleet asked for is measured first; then larger or smaller ones, until the largest within the goals is known.
    """

    executors: int = Field(default=32, ge=1, le=256, description="The fleet that is asked for.")
    most_executors: int = Field(default=64, ge=1, le=256, description="The search for the largest fleet ends here.")
    search: bool = Field(default=True, description="Look for the largest fleet within the goals.")
    rows: int = Field(default=256, ge=1, le=4096, description="Rows that decode together on each executor.")
    step_ms: float = Field(default=20.0, gt=0, le=1000, description="Time that a step takes on an executor, ms.")
    warm_up_s: float = Field(default=3.0, ge=0, le=600, description="Time before a window, from when all rows decode, seconds.")
    window_s: float = Field(default=10.0, gt=0, le=600, description="Time that is measured of each fleet, seconds.")
    json_file: Path | None = Field(default=None, description="Write all figures there, as JSON.")
