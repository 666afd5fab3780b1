"""Settings of `drumline bench start`."""

from pathlib import Path

from pydantic import Field

from drumline.settings import ServiceSettings


class StartSettings(ServiceSettings):
    """How long `drumline serve` takes from its command to the first token of a streamed answer, and each part's processor time.

    One start that is not counted comes first: it compiles the kernels if need be. What follows -- goes to `serve`.
    """

    repetitions: int = Field(default=3, ge=1, le=100, description="Starts that are counted, one after the other.")
    json_file: Path | None = Field(default=None, description="Write the figures there, as JSON.")
