"""What all executors have in common, and who may join: one model, each process once, ids and epochs that never repeat."""

from typing import Any

from drumline.errors import ModelMismatch, Unavailable


class Fleet:
    """Messages are opaque here.

    Attributes:
        model: the served model as the first executor gave it (GetModelResponse), or None.
        model_digest, vocab_size, max_model_len: of the first executor that joined; "" and 0 before.
    """

    def __init__(self, *, epoch: int) -> None:
        """`epoch` is the scheduler's start time, ns since the Unix epoch: the n-th session opens with epoch + n, so that a
        scheduler may return to an executor, and one that was started later always wins."""
        self.model: Any = None
        self.model_digest = ""
        self.vocab_size = 0
        self.max_model_len = 0
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
        """The first that joins decides the model. Raises ModelMismatch if two first ones shook hands at once."""
        self._check_model(address, capabilities)
        self.model = self.model or model
        if not self.is_known:
            self.model_digest = capabilities.model_digest
            self.vocab_size = capabilities.vocab_size
            self.max_model_len = capabilities.max_model_len

    def _check_model(self, address: str, capabilities: Any) -> None:
        if self.is_known and capabilities.model_digest != self.model_digest:
            raise ModelMismatch(
                f"executor {address} serves model {capabilities.model_digest[:12]}, the fleet serves {self.model_digest[:12]}"
            )
