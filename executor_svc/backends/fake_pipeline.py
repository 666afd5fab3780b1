"""What the fake backend says of raggedness: as a plain backend, or as one with a drafter that drafts nothing."""

from dataclasses import dataclass
from typing import Final

from executor_svc.ragged import DrafterFacts, ModelFacts, MtpPipeline, PlainPipeline, RaggedPipeline, RaggedSwitches

REFUSED_BY_SETTING: Final = "refused by the setting `ragged`"


@dataclass(frozen=True, slots=True)
class FakeSlot:
    """`SlotFacts` without a slot."""

    kind: str
    supports_per_sequence_len: bool


def fake_pipeline(drafter: str, *, refused: bool, switches: RaggedSwitches) -> RaggedPipeline:
    """`drafter`: none, mtp (two normal slots) or v4 (two normal slots, then two of kind xs_rolling)."""
    normal = [FakeSlot("normal", supports_per_sequence_len=True)] * 2
    xs = [FakeSlot("xs_rolling", supports_per_sequence_len=switches.v4_xs_per_seq)] * 2
    model = ModelFacts("fake", slots=normal + xs if drafter == "v4" else normal, masks_ragged_batches=True)
    if drafter == "none" or refused:
        return PlainPipeline("fake", model=model, refused=REFUSED_BY_SETTING if refused else "")
    stub = DrafterFacts("stub", carries_per_sequence_positions=True)
    return MtpPipeline(f"fake-{drafter}", model=model, drafter=stub, switches=switches)
