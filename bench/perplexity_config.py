"""Settings of `drumline bench perplexity`."""

from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from drumline.settings import ServiceSettings

TEXT: Final = Path(__file__).with_name("perplexity.txt")
"""The licence and decisions 0001 to 0013 as they stood when this was written: a copy, so that no later edit moves the figure."""


class PerplexitySettings(ServiceSettings):
    """How well each arithmetic predicts a fixed text: perplexity of the executor's own forward pass, and its ratio to float32.

    The text is cut into whole windows; every token of a window but the first is predicted from those before it, nothing else.
    """

    precision: tuple[Literal["auto", "int8", "int8-groups", "f32", "bf16"], ...] = Field(
        default=("int8", "int8-groups", "f32"),
        min_length=1,
        description="Arithmetic of linear layers; repeat it. Ratios are to f32, if it is there.",
    )
    model: str = Field(default="", description="Hugging Face folder or GGUF file; none = SmolLM2-135M-Instruct.")
    text: Path = Field(default=TEXT, description="Text to predict, UTF-8; none = one that comes with Drumline and never changes.")
    window: int = Field(default=512, ge=2, le=2**16, description="Tokens of a window.")
    num_windows: int = Field(default=0, ge=0, description="Windows from the beginning of the text; 0 = all.")
    num_threads: int = Field(default=0, ge=0, le=1024, description="Threads; 0 = as many as there are cores.")
    json_file: Path | None = Field(default=None, description="Write the figures there, as JSON.")
