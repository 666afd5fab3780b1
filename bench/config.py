"""Settings of `python -m bench`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from drumline.settings import ServiceSettings


class BenchSettings(ServiceSettings):
    """Measures a server from outside, over HTTP streaming, from one client process.

    Without --url a `drumline serve` is started for the run, and what stands behind -- is handed to it:
        python -m bench --repetitions 3 -- --precision f32
    `drumline bench price` and `drumline bench curve` compare layouts and admission policies, `drumline bench perplexity` the
    quality of each arithmetic, `drumline bench start` times a start; each has a --help of its own.
    """

    url: str = Field(default="", description="A running server; none = start one for this run.")
    api_key: str = Field(default="", repr=False, description="Key of that server, if it wants one.")
    workload: tuple[Literal["W1", "W2", "W3", "W4", "W5", "W5b", "W6c", "W6w"], ...] = Field(
        default=("W1", "W3", "W4"),
        min_length=1,
        description="Workload to run; repeat it. They are described in bench/workloads.py.",
    )
    repetitions: int = Field(default=1, ge=1, le=100, description="Runs of each workload; the table shows medians, the JSON all.")
    seed: int = Field(default=0, ge=0, description="Draws lengths and words. Repetitions differ in words, never in lengths.")
    quick: bool = Field(
        default=False, description="A few streams and tokens: does everything once, measures nothing worth quoting."
    )
    json_file: Path | None = Field(default=None, description="Write all measurements there, as JSON.")
    markdown_file: Path | None = Field(default=None, description="Write the table there, as Markdown.")
