"""Settings of `drumline bench gpu`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from drumline.settings import ServiceSettings

Section = Literal["kernels", "attention", "executor", "transformers"]


class GpuSettings(ServiceSettings):
    """What the CUDA kernels and the executor on them do on this machine's GPU: right or wrong first, then how fast.

    kernels: every case of every kernel against its reference, by itself and replayed from a graph. attention: bytes a second of
    decode attention and its share of the memory's peak. executor: tokens a second of whole steps on a model with random weights,
    beside what memory allows. transformers: the same requests through its continuous batching, on the same model.
    """

    section: tuple[Section, ...] = Field(
        default=("kernels", "attention", "executor", "transformers"), min_length=1, description="What to run; repeat it."
    )
    shape: Literal["8b", "1b", "tiny"] = Field(default="8b", description="Shape of the model with random weights.")
    rows: Annotated[int, Field(ge=1, le=1024)] = Field(default=128, description="Sequences of decode steps.")
    context: tuple[Annotated[int, Field(ge=1, le=131072)], ...] = Field(
        default=(2048, 8192), min_length=1, description="Tokens in each sequence's cache; repeat it."
    )
    steps: int = Field(default=50, ge=1, le=10000, description="Steps that are timed, after five that are not.")
    peak_tb_s: float = Field(default=0, ge=0, description="Peak of the memory, TB/s; 0 = from the GPU's clock and bus width.")
    emulated: bool = Field(
        default=False, description="Run on the processor under the emulator: does everything once, no figure means anything."
    )
    json_file: Path | None = Field(default=None, description="Write all results there, as JSON.")
