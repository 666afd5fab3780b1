"""What a backend is: a device with a model that runs one batch at a time. It decides nothing about who runs."""

from dataclasses import dataclass
from typing import Protocol

from executor_svc.drafter import Drafter
from executor_svc.plan import PAGED, Batch, Sampled
from executor_svc.ragged import RaggedPipeline


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a gateway needs of the model; fields as in `executor.proto` GetModelResponse."""

    model_digest: str
    model_name: str
    tokenizer_json: bytes
    chat_template: str
    bos_token_id: int | None
    add_bos: bool
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What the device can do; fields as in `executor.proto` GetCapabilitiesResponse."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str
    kernels: tuple[str, ...]
    precision: str
    batch_invariant: bool
    ragged_granted: bool
    ragged_reason: str
    layouts: tuple[int, ...] = (PAGED,)
    kv_cache_dtype: str = ""
    drafter: str = "none"
    mtp_depth: int = 0


class Backend(Protocol):
    """One device. Called from one thread, the worker's; never concurrently."""

    @property
    def model(self) -> ModelInfo:
        """Constant after construction."""
        ...

    @property
    def info(self) -> BackendInfo:
        """Constant after construction."""
        ...

    @property
    def pipeline(self) -> RaggedPipeline:
        """Who declares whether rows of different lengths may share a step, and hears what was granted."""
        ...

    @property
    def drafter(self) -> Drafter | None:
        """Who guesses ahead; None = nobody. Constant after construction."""
        ...

    def forward(self, batch: Batch) -> Sampled:
        """Writes keys and values of the fed tokens into the cache and chooses one token at each place of `batch.sample`.

        Changes only cache blocks named by the batch, and in a dense layout the caches of its rows. Owns nothing of `batch` after
        it returns; the caller owns the result. A row that cannot be computed (non-finite logits) is reported in `row_errors`; an
        exception means that the whole batch failed. One that asks for what a cache cannot do raises a DrumlineError with the
        reason, every cache unchanged.
        """
        ...

    def reset(self) -> None:
        """A new session: nothing in the cache is needed any more."""
        ...

    def close(self) -> None:
        """Gives the device back. Idempotent."""
        ...
