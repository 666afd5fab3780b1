"""Settings of `drumline bench price`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from drumline.settings import ServiceSettings

Length = Annotated[int, Field(ge=1, le=2**20)]


class PriceSettings(ServiceSettings):
    """What a layout costs: aligned (A), stripped (B), paged (C) side by side on the same mixed workload, each its own server.

    Tokens per second of each, B/A and C/A from runs that stand beside each other, and row copies per step as the executors count
    them. All rows of a run arrive at once; whoever runs first changes from repeat to repeat.
    """

    rows: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        default=(8, 32), min_length=1, description="Rows at the same time; repeat it."
    )
    prompt_tokens: tuple[Length, ...] = Field(
        default=(32, 64, 128, 256, 512), min_length=1, description="Prompt lengths, dealt out in turn; repeat it."
    )
    output_tokens: Length = Field(default=64, description="Tokens that each row generates.")
    repeats: int = Field(default=4, ge=1, le=100, description="Runs of each arm and number of rows; 4 let each arm go first once.")
    seed: int = Field(default=0, ge=0, description="Draws words and deals lengths. Arms of one repeat get the same.")
    model: str = Field(default="", description="Hugging Face folder or GGUF file; none = SmolLM2-135M-Instruct.")
    precision: str = Field(default="auto", description="Arithmetic of the executors, for example f32 or int8.")
    backend: str = Field(default="cpu", description="cpu, or fake: no model, and no figure that means anything.")
    smoke: bool = Field(default=False, description="4 rows, 1 repeat, few tokens: does everything once, measures nothing.")
    json_file: Path | None = Field(default=None, description="Write all runs there, as JSON.")
