"""The executor's own state: which sequence lives in which slot, its tokens, its true lengths and why it ended. NumPy only.

Legend: N slots, L max_model_len. One owner, the worker thread; other threads may read `num_live`. A sequence goes EMPTY -> LIVE
-> ENDED -> EMPTY; one that came with bad parameters is REFUSED until its first row reports why.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from drumline.errors import ContextLengthExceeded, DrumlineError, InvalidRequest, PlanRejected
from drumline.validation import check_sampling
from executor_svc.blocks import BlockTables
from executor_svc.plan import I32, NewSequence
from executor_svc.sampling import SamplingTable

EMPTY: Final = 0
LIVE: Final = 1
ENDED: Final = 2
REFUSED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    """Bounds of the state; meanings as in `executor.proto` GetCapabilitiesResponse."""

    num_slots: int
    max_model_len: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class Slots:
    """All sequences of one session.

    Attributes:
        status: i8 [N]. tokens: i32 [N, L], prompt then output. num_prompt, num_known: i32 [N], tokens of the prompt, tokens known.
        num_computed: i32 [N], tokens whose keys and values are in the cache: the sequence's own length.
        entered: i64 [N], which sequence this is, counted from 1 as they came: no two of a session have the same number.
        sampling, blocks: the other columns of the same slots.
        version: rises whenever a sequence enters, so that gathered columns can be kept while it stands.
        num_live: LIVE slots.
    """

    def __init__(self, limits: SlotLimits) -> None:
        self.limits = limits
        size = limits.num_slots
        self.status = np.zeros(size, np.int8)
        self.tokens: I32 = np.zeros((size, limits.max_model_len), np.int32)
        self.num_prompt: I32 = np.zeros(size, np.int32)
        self.num_known: I32 = np.zeros(size, np.int32)
        self.num_computed: I32 = np.zeros(size, np.int32)
        self.entered: NDArray[np.int64] = np.zeros(size, np.int64)
        self.sampling = SamplingTable(size, eos_token_ids=limits.eos_token_ids)
        width = -(-limits.max_model_len // limits.block_size)
        self.blocks = BlockTables(num_slots=size, width=width, num_blocks=limits.num_blocks)
        self.version = 0
        self.num_live = 0
        self._left: set[int] = set()
        self._refusals: dict[int, tuple[str, str]] = {}

    def free(self, slots: list[int]) -> None:
        """Slots given back; an empty one stays empty. Raises PlanRejected for a slot that does not exist."""
        if slots:
            known = self._existing("freed_slots", slots)
            self._leave(known)
            self.status[known] = EMPTY

    def abort(self, slots: list[int]) -> None:
        """Sequences withdrawn: their rows are skipped from now on. An empty or ended slot stays as it is."""
        if slots:
            known = self._existing("aborted_slots", slots)
            self.end(known[(self.status[known] == LIVE) | (self.status[known] == REFUSED)])

    def end(self, slots: I32) -> None:
        """LIVE or REFUSED sequences are over; their blocks are no longer in use. `slots` are distinct."""
        if len(slots):
            self._leave(slots)
            self.status[slots] = ENDED

    def enter(self, new: NewSequence) -> None:
        """A sequence moves in. Bad parameters are kept as its refusal; a slot that does not exist is left to its row to report."""
        if not 0 <= new.slot < self.limits.num_slots:
            return
        occupied = self.status[new.slot] == LIVE
        self._leave(np.array([new.slot], np.int32))
        try:
            if occupied:
                raise PlanRejected(f"slot {new.slot} still holds a sequence")
            self._check(new)
        except DrumlineError as error:
            self.status[new.slot] = REFUSED
            self._refusals[new.slot] = (error.code, error.message)
            return
        self.status[new.slot] = LIVE
        self.num_live += 1
        self.version += 1
        self.entered[new.slot] = self.version
        self.tokens[new.slot, : len(new.token_ids)] = new.token_ids
        self.num_known[new.slot] = len(new.token_ids)
        self.num_prompt[new.slot] = new.num_prompt_tokens
        self.num_computed[new.slot] = new.num_cached_tokens
        self.sampling.put(new.slot, new.sampling, prompt_logprobs_done=new.num_prompt_logprobs_done)

    def refusal(self, slot: int) -> tuple[str, str]:
        """Why a REFUSED slot's sequence cannot run: code and words."""
        return self._refusals[slot]

    def take_left(self) -> I32:
        """Slots whose sequence ended or left since the last call, rising: what a backend keeps for them is of no use any more."""
        left = np.array(sorted(self._left), np.int32)
        self._left.clear()
        return left

    def _leave(self, slots: I32) -> None:
        self._left.update(slots.tolist())
        self.num_live -= int(np.count_nonzero(self.status[slots] == LIVE))
        self.blocks.clear(slots)
        if self._refusals:
            for slot in slots.tolist():
                self._refusals.pop(slot, None)

    def _existing(self, name: str, slots: list[int]) -> I32:
        known = np.unique(np.array(slots, np.int64))
        if known[0] < 0 or known[-1] >= self.limits.num_slots:
            raise PlanRejected(f"{name} names slot {known[-1]}; slots are 0 to {self.limits.num_slots - 1}")
        return known.astype(np.int32)

    def _check(self, new: NewSequence) -> None:
        """The same limits as at the other entrances, and what only the executor can know."""
        vocab, ids, known = self.limits.vocab_size, new.token_ids, len(new.token_ids)
        check_sampling(new.sampling, vocab_size=vocab)
        if not 1 <= new.num_prompt_tokens <= known:
            raise InvalidRequest(f"num_prompt_tokens must be between 1 and {known}, got {new.num_prompt_tokens}", param="prompt")
        if int(ids.min()) < 0 or int(ids.max()) >= vocab:
            index = int(np.flatnonzero((ids < 0) | (ids >= vocab))[0])
            raise InvalidRequest(f"token_ids[{index}] is {int(ids[index])}; token ids are 0 to {vocab - 1}", param="prompt")
        if not 0 <= new.num_cached_tokens < known:
            raise PlanRejected(f"num_cached_tokens is {new.num_cached_tokens}; one of {known} tokens must be left to compute")
        emitted = known - new.num_prompt_tokens
        if emitted >= max(new.sampling.max_tokens, 1):
            raise PlanRejected(f"{emitted} tokens were emitted already, max_tokens is {new.sampling.max_tokens}")
        room = self.limits.max_model_len - (1 if new.sampling.max_tokens else 0)
        if known > room:
            raise ContextLengthExceeded(f"{known} tokens leave no room to emit one; max_model_len is {self.limits.max_model_len}")
