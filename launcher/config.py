"""Settings of `drumline serve`. The flags of a service that are met often are here too and are handed on; all others are reached
through the TOML file and the environment, which every service reads by itself.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from drumline.settings import ServiceSettings


class ServeSettings(ServiceSettings):
    """Starts executors, scheduler and gateway as processes, restarts those that die, and drains them on SIGTERM or Ctrl-C.

    A flag that is not set is not handed on: the service then uses its own environment, file or default.
    """

    executors: int = Field(default=1, ge=1, le=64, description="Executor processes; the processors are divided among them.")
    host: str = Field(default="127.0.0.1", description="Address of the HTTP API. All else stays on loopback.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port of the HTTP API; 0 = any free one.")
    drain_timeout_s: float = Field(default=30.0, ge=0, description="How long running requests may finish after SIGTERM, seconds.")
    ready_timeout_s: float = Field(default=600.0, gt=0, description="Longest start of one service (loading a model), seconds.")

    backend: str | None = Field(default=None, description="What runs the plans: auto, cpu, cuda, or fake (no model).")
    model: str | None = Field(default=None, description="Hugging Face folder or GGUF file; none = SmolLM2-135M-Instruct.")
    served_model_name: tuple[str, ...] | None = Field(default=None, description="Name of the model in the API.")
    precision: str | None = Field(default=None, description="Arithmetic of the executor, for example f32 or bf16.")
    batch_invariant: bool | None = Field(
        default=None, description="Results of a row must not depend on its batch mates, bit for bit."
    )
    max_model_len: int | None = Field(default=None, ge=1, description="Most tokens (prompt + output) of one sequence.")
    max_num_seqs: int | None = Field(default=None, ge=1, description="Most sequences resident on one executor.")
    max_num_batched_tokens: int | None = Field(default=None, ge=1, description="Most tokens fed to one executor in one step.")
    kv_memory: str | None = Field(default=None, description="Memory of each executor's KV cache, bytes (or 512MiB, 2GiB).")
    kv_cache_dtype: str | None = Field(default=None, description="What keys and values are stored as: auto, float32 or float16.")
    enable_prefix_caching: bool | None = Field(default=None, description="Reuse the KV blocks of prompts that begin alike.")
    drafter: str | None = Field(default=None, description="Who guesses tokens ahead: auto, none, ngram or mtp.")
    draft_head: str | None = Field(default=None, description="File of a draft head for the model (drumline train-draft).")
    mtp_depth: int | None = Field(default=None, ge=0, le=8, description="Most tokens guessed ahead of a row in one step.")
    drafts: str | None = Field(default=None, description="How far guesses go: adaptive, fixed or off.")
    advance: str | None = Field(default=None, description="How rows with drafts move: per_sequence, or cohort to compare.")
    record: Path | None = Field(default=None, description="Folder for recordings, which drumline replay and trace read.")
    throughput_log: bool | None = Field(default=None, description="Log tokens per second, hit rate, running and waiting rows.")
    api_key: tuple[str, ...] | None = Field(default=None, description="API key that clients must show; several are allowed.")
    log_level: Literal["debug", "info", "warning", "error"] | None = Field(
        default=None, description="Least severe messages logged."
    )
