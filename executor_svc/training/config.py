"""Settings of `drumline train-draft`."""

from typing import Literal

from pydantic import Field

from drumline.settings import ServiceSettings


class TrainDraftSettings(ServiceSettings):
    """Everything that one run can be told. The same folder goes on where it was."""

    out: str = Field(default="draft-head", description="Folder for dialogues, checkpoints, and in the end head and card.")
    model: str = Field(default="", description="GGUF file or Hugging Face folder; none = SmolLM2-135M-Instruct.")
    stage: Literal["all", "generate", "train"] = Field(
        default="all", description="generate = only write dialogues; train = only train on those that are there; all = both."
    )
    tokens: int = Field(default=5_000_000, ge=1000, description="Tokens of dialogues to generate.")
    max_question: int = Field(default=48, ge=4, description="Most tokens of a question.")
    max_answer: int = Field(default=256, ge=8, description="Most tokens of an answer.")
    system: str = Field(
        default="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        description="System prompt of all dialogues.",
    )
    num_seqs: int = Field(default=128, ge=1, le=1024, description="Dialogues written at the same time.")
    vocabulary: int = Field(default=8192, ge=16, description="Tokens that the head can draft: the most frequent ones.")
    depth: int = Field(default=3, ge=1, le=8, description="Applications of the head to itself that are trained.")
    epochs: int = Field(default=2, ge=1, description="Times that each dialogue is trained on.")
    batch: int = Field(default=4, ge=1, description="Dialogues of a training step.")
    window: int = Field(default=256, ge=16, description="Tokens of a dialogue that a training step sees at once.")
    lr: float = Field(default=1e-3, gt=0, description="Highest learning rate.")
    held_out: int = Field(default=64, ge=1, description="One dialogue of so many is kept for evaluation.")
    num_threads: int = Field(default=0, ge=0, le=1024, description="Threads; 0 = as many as there are cores.")
    seed: int = Field(default=0, ge=0, le=2**31, description="Draws dialogues and their order.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least severe messages logged.")
