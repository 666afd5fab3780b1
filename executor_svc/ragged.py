"""May rows of different lengths share a step here, and do rows then move each by itself? The declaration, the grant, the latch.

A pipeline declares; the scheduler decides and says so when it opens a session; then, once, before the first step, the pipeline
settles how rows move. The declaration never asks what was granted: that would be a circle in which nothing is ever declared.

Every refusal is in words that name who refuses and why. No switch but the two of `RaggedSwitches` counts.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from executor_svc.plan import COHORT, PER_SEQUENCE

log = logging.getLogger(__name__)


class KvAdvance(IntEnum):
    """How rows move after a step; values of `plan.proto` Advance."""

    COHORT = COHORT
    PER_SEQUENCE = PER_SEQUENCE


@dataclass(frozen=True, slots=True)
class RaggedDeclaration:
    """What a pipeline says of itself; `reason` is never empty."""

    granted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RaggedSwitches:
    """The request's two switches, both off unless told: `ARC_MTP_PER_SEQ_KV` and `ARC_V4_XS_PER_SEQ`."""

    mtp_per_seq_kv: bool = False
    v4_xs_per_seq: bool = False


class SlotFacts(Protocol):
    """What the checks ask of a cache slot; every slot of `executor_svc.layouts` can say it."""

    @property
    def kind(self) -> str: ...
    @property
    def supports_per_sequence_len(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the checks ask of a model.

    Attributes:
        name: for refusals.
        slots: one cache slot for each layer, as a fresh sequence would have them.
        masks_ragged_batches: its attention leaves each row's dead prefix out, in every kind of layer, for one query and several.
    """

    name: str
    slots: Sequence[SlotFacts]
    masks_ragged_batches: bool


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What the checks ask of a drafter: whether each row's chain of drafts starts at that row's own position."""

    name: str
    carries_per_sequence_positions: bool


class RaggedPipeline:
    """The base: declares nothing, which is a refusal. Whoever can do better says so by overriding the declaration."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.granted = False
        self._advance: KvAdvance | None = None

    def ragged_batch_admission(self) -> RaggedDeclaration:
        """May rows of different lengths share a step? Asked at the handshake, before anything was granted."""
        return RaggedDeclaration(False, f"the pipeline {self.name!r} does not declare that it can run rows of different lengths")

    def begin_session(self) -> None:
        """A new scheduler: what the one before was granted is over, and how rows move is open again."""
        self.granted = False
        self._advance = None

    def set_ragged_batch_admission(self, *, granted: bool) -> None:
        """What the scheduler decided. After the first step it is too late: a warning, and nothing changes."""
        if self._advance is not None:
            log.warning("%s: a grant came after the first step and has no effect; rows move by %s", self.name, self._advance.name)
            return
        self.granted = granted

    def kv_advance(self) -> KvAdvance:
        """How rows move; settled at the first call of a session."""
        if self._advance is None:
            self._advance = self._settle_advance()
        return self._advance

    def _settle_advance(self) -> KvAdvance:
        return KvAdvance.COHORT


class PlainPipeline(RaggedPipeline):
    """Decoding without drafts: rows differ in length but each moves by the one token it fed. No switch is needed for that."""

    def __init__(self, name: str, *, model: ModelFacts, refused: str = "") -> None:
        super().__init__(name)
        self._model = model
        self._refused = refused

    def ragged_batch_admission(self) -> RaggedDeclaration:
        """See `RaggedPipeline`. `refused` are the words of a setting that forbids it."""
        refusal = self._refused or cache_supports_per_sequence_advance(self._model) or model_masks_ragged_batches(self._model)
        return RaggedDeclaration(not refusal, refusal or f"{self.name}: attention takes a length per row")

    def _settle_advance(self) -> KvAdvance:
        return KvAdvance.PER_SEQUENCE if self.granted else KvAdvance.COHORT


class MtpPipeline(RaggedPipeline):
    """Decoding with drafts over dense caches, as the request has it: the one whose rows diverge by what each accepts."""

    def __init__(self, name: str, *, model: ModelFacts, drafter: DrafterFacts, switches: RaggedSwitches) -> None:
        super().__init__(name)
        self._model = model
        self._drafter = drafter
        self._switches = switches

    def ragged_batch_admission(self) -> RaggedDeclaration:
        """See `RaggedPipeline`. Made of the capability alone: `per_sequence_refusal` ends in the answer to this question."""
        refusal = self.ragged_cohort_capability()
        return RaggedDeclaration(not refusal, refusal or f"{self.name}: cache, mask and draft chain carry a length per sequence")

    def ragged_cohort_capability(self) -> str:
        """The switch and three checks, in this order; "" or the first refusal."""
        if not self._switches.mtp_per_seq_kv:
            return (
                f"{self.name}: ARC_MTP_PER_SEQ_KV is off, so all rows move by the slowest and never diverge; a cohort that does "
                "not diverge gains nothing from being assembled in every step"
            )
        return self._cache_refusal() or self._mask_refusal() or self._draft_refusal()

    def per_sequence_refusal(self) -> str:
        """The three checks and the grant; "" or the first refusal. For the latch, never for the declaration."""
        return self._cache_refusal() or self._mask_refusal() or self._draft_refusal() or self.batch_admission_refusal()

    def batch_admission_refusal(self) -> str:
        """The fourth check: was a ragged cohort admitted?"""
        return "" if self.granted else "the scheduler did not admit ragged cohorts"

    def _cache_refusal(self) -> str:
        return cache_supports_per_sequence_advance(self._model)

    def _mask_refusal(self) -> str:
        return model_masks_ragged_batches(self._model)

    def _draft_refusal(self) -> str:
        return draft_chain_carries_per_sequence_positions(self._drafter)

    def _settle_advance(self) -> KvAdvance:
        if not self._switches.mtp_per_seq_kv:
            return KvAdvance.COHORT
        if refusal := self.per_sequence_refusal():
            log.warning("%s: ARC_MTP_PER_SEQ_KV is on, but this pipeline cannot honour it: %s", self.name, refusal)
            return KvAdvance.COHORT
        log.info("%s: per-sequence KV advance is ON", self.name)
        return KvAdvance.PER_SEQUENCE


def cache_supports_per_sequence_advance(model: ModelFacts) -> str:
    """ "" or a refusal that names the first slot which cannot have a length per sequence."""
    for layer, slot in enumerate(model.slots):
        if not slot.supports_per_sequence_len:
            switch = "; ARC_V4_XS_PER_SEQ is off" if slot.kind == "xs_rolling" else ""
            return f"{model.name}: cache slot {layer} is of kind {slot.kind}, which cannot have a length per sequence{switch}"
    return ""


def model_masks_ragged_batches(model: ModelFacts) -> str:
    """ "" or a refusal: zeros in front of a row are not a mask."""
    if model.masks_ragged_batches:
        return ""
    return f"{model.name}: its attention does not mask the dead prefix of a ragged batch, whose zeros would take weight"


def draft_chain_carries_per_sequence_positions(drafter: DrafterFacts) -> str:
    """ "" or a refusal: a chain that starts at one position for all rows drafts the wrong continuation for most."""
    if drafter.carries_per_sequence_positions:
        return ""
    return f"drafter {drafter.name}: its chain of drafts has one position for the whole batch"
