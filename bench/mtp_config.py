"""Settings of `drumline bench mtp`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from drumline.settings import ServiceSettings


class MtpSettings(ServiceSettings):
    """Drafts against none, on chat questions, in turn: tokens/s, tokens per step, acceptance by place, and whether answers are
    equal.

    What stands behind -- is handed to every `drumline serve`.
    """

    drafter: tuple[Literal["ngram", "mtp"], ...] = Field(
        default=("ngram",), description="Drafter to measure; repeat it. mtp needs a draft head."
    )
    depth: tuple[int, ...] = Field(default=(3,), description="Most drafts of a row in a step; repeat it.")
    advance: tuple[Literal["per_sequence", "cohort"], ...] = Field(
        default=("per_sequence",), description="As the scheduler's --advance; repeat it to compare both."
    )
    drafts: Literal["adaptive", "fixed"] = Field(default="adaptive", description="As the scheduler's --drafts.")
    streams: tuple[int, ...] = Field(default=(1, 8, 32), description="Clients at work at the same time; repeat it.")
    num_questions: int = Field(
        default=32, ge=1, le=10_000, description="Questions of a run; at least as many as streams are asked."
    )
    temperature: float = Field(default=0.0, ge=0, le=2, description="Of every answer; above 0 they are seeded, with top-p 0.9.")
    max_tokens: int = Field(default=128, ge=1, description="Most tokens of an answer.")
    repetitions: int = Field(default=3, ge=1, le=100, description="Runs of each server, in turn.")
    json_file: Path | None = Field(default=None, description="Write the figures there, as JSON.")
