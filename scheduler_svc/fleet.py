"""What all executors have in common, and who may join: one model, each process once, ids and epochs that never repeat."""

import asyncio
import logging
from typing import Any

from drumline.errors import ModelMismatch, Unavailable

_LOG = logging.getLogger(__name__)


class Fleet:
    """Messages are opaque here.

    Attributes:
        model: the served model as the first executor gave it (GetModelResponse), or None.
        model_digest, vocab_size, max_model_len: of the first executor that joined; "" and 0 before.
        arithmetic: how that one computes.
        known: set once an executor has joined.
    """

    def __init__(self, *, epoch: int) -> None:
        """`epoch` is the scheduler's start time, ns since the Unix epoch: the n-th session opens with epoch + n, so that a
        scheduler may return to an executor, and one that was started later always wins."""
        self.model: Any = None
        self.model_digest = ""
        self.vocab_size = 0
        self.max_model_len = 0
        self.arithmetic = ""
        self.known = asyncio.Event()
        self._epoch = epoch
        self._next_executor_id = 1
        self._claimed: dict[int, str] = {}

    @property
    def is_known(self) -> bool:
        """Whether an executor has ever joined."""
        return bool(self.model_digest)

    def claim(self, address: str, capabilities: Any) -> tuple[int, int]:
        """A new executor id and session epoch. Raises ModelMismatch, or Unavailable if that process is already linked."""
        self._check_model(address, capabilities)
        if capabilities.instance_id in self._claimed.values():
            raise Unavailable(f"executor {address} is already linked under another address")
        executor_id = self._next_executor_id
        self._next_executor_id += 1
        self._claimed[executor_id] = capabilities.instance_id
        return executor_id, self._epoch + executor_id

    def release(self, executor_id: int) -> None:
        """Its session is over, or never opened. Idempotent."""
        self._claimed.pop(executor_id, None)

    def join(self, address: str, capabilities: Any, *, model: Any) -> None:
        """The first that joins decides the model. Raises ModelMismatch if two first ones shook hands at once.

        One that computes differently joins too, with a warning: a fleet of CPUs and GPUs is one, and may be told so on purpose.
        """
        self._check_model(address, capabilities)
        arithmetic = _arithmetic(capabilities)
        if self.is_known and arithmetic != self.arithmetic:
            text = "executor=%s computes in %s, the first one in %s: a row that moves between them may go on with other tokens"
            _LOG.warning(text, address, arithmetic, self.arithmetic)
        self.model = self.model or model
        if not self.is_known:
            self.model_digest = capabilities.model_digest
            self.vocab_size = capabilities.vocab_size
            self.max_model_len = capabilities.max_model_len
            self.arithmetic = arithmetic
            self.known.set()

    def _check_model(self, address: str, capabilities: Any) -> None:
        if self.is_known and capabilities.model_digest != self.model_digest:
            raise ModelMismatch(
                f"executor {address} serves model {capabilities.model_digest[:12]}, the fleet serves {self.model_digest[:12]}"
            )


def _arithmetic(capabilities: Any) -> str:
    """What decides whether two executors of one model give the same bits, as far as they say it."""
    kind = capabilities.device.partition(" ")[0] or "an unknown device"  # what follows names the processor and its threads
    return f"{capabilities.precision} on {kind}, keys and values in {capabilities.kv_cache_dtype or 'float32'}"
