"""Who may enter: bounds of the waiting queue, and what can never fit. Refusals are values."""

from array import array
from collections.abc import Sequence as Seq

from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.types import Limits, Refusal, Request

MAX_RETRY_AFTER_S = 60


class Admission:
    """Looks at arrivals; changes nothing."""

    def __init__(self, limits: Limits, executors: dict[int, ExecutorBooks], queue: WaitingQueue) -> None:
        self._limits = limits
        self._executors = executors
        self._queue = queue

    def refuse(self, requests: Seq[Request]) -> Refusal | None:
        """None = admitted. Re-queued sequences do not count against the bounds."""
        for request in requests:
            refusal = self._refuse_one(request)
            if refusal is not None:
                return refusal
        limits, queue = self._limits, self._queue
        num_tokens = sum(len(request.prompt) for request in requests)
        if len(requests) > limits.max_waiting_requests:
            return Refusal(
                "invalid_request", f"{len(requests)} sequences at once; the waiting queue holds {limits.max_waiting_requests}"
            )
        if num_tokens > limits.max_waiting_tokens:
            return Refusal(
                "invalid_request", f"{num_tokens} prompt tokens at once; the waiting queue holds {limits.max_waiting_tokens}"
            )
        if len(queue.fresh) + len(requests) > limits.max_waiting_requests:
            return self._overloaded(f"{len(queue.fresh)} sequences wait; the limit is {limits.max_waiting_requests}")
        if queue.num_fresh_tokens + num_tokens > limits.max_waiting_tokens:
            return self._overloaded(f"{queue.num_fresh_tokens} prompt tokens wait; the limit is {limits.max_waiting_tokens}")
        return None

    def unholdable(self, seq: Sequence) -> Refusal | None:
        """Why no executor that takes new sequences can ever hold `seq`; None when one can, or when there is none to judge by."""
        able = [books for books in self._executors.values() if not books.draining]
        if not able or any(books.can_ever_hold(seq) for books in able):
            return None
        length = max(books.info.max_model_len for books in able)
        memory = max(books.info.num_blocks * books.info.block_size for books in able)
        return Refusal(
            "context_length_exceeded",
            f"prompt ({seq.num_prompt}) plus max_tokens ({seq.request.max_tokens}) is {seq.max_total} tokens; "
            f"max_model_len is {length} and the KV cache holds {memory}",
        )

    def _refuse_one(self, request: Request) -> Refusal | None:
        if not len(request.prompt):
            return Refusal("invalid_request", "prompt is empty")
        if request.max_tokens < 1 and not (request.max_tokens == 0 and request.prompt_logprobs):
            return Refusal("invalid_request", f"max_tokens must be at least 1, got {request.max_tokens}")
        return self.unholdable(Sequence(request, array("I")))

    def _overloaded(self, message: str) -> Refusal:
        slots = sum(books.max_rows for books in self._executors.values() if not books.draining)
        return Refusal("overloaded", message, min(MAX_RETRY_AFTER_S, 1 + len(self._queue) // max(1, slots)))
