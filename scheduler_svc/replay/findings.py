"""What an audit can find, by name."""

from dataclasses import dataclass
from enum import StrEnum


class Name(StrEnum):
    """One word for each way in which a recording can break the contract of the seam."""

    LEAKED_BLOCK = "leaked block"
    BLOCK_OWNED_TWICE = "block owned twice"
    BLOCK_OUT_OF_RANGE = "block out of range"
    BLOCKS_TOO_SHORT = "blocks do not cover the row"
    WRONG_PREFIX_HIT = "prefix hit on other content"
    SWAPPED_ROWS = "swapped rows"
    STALE_LENGTH = "stale length"
    WRONG_LENGTH = "wrong length"
    LOST_ABORT = "lost abort"
    ROW_AFTER_END = "row scheduled after its end"
    RAN_AFTER_END = "row ran after its end"
    SKIPPED_ALIVE = "row skipped while alive"
    UNKNOWN_SLOT = "row in a slot that nobody holds"
    SLOT_REUSED_EARLY = "slot reused too early"
    SLOT_OCCUPIED = "slot given while occupied"
    ROW_TWICE = "slot twice in one plan"
    BUDGET_EXCEEDED = "budget exceeded"
    IN_FLIGHT_EXCEEDED = "in-flight bound exceeded"
    LATE_FREE = "late free"
    FREED_IN_FLIGHT = "freed with plans in flight"
    LOST_TOKEN = "lost token"  # noqa: S105 - a token of text
    DOUBLED_TOKEN = "doubled token"  # noqa: S105 - a token of text
    CHANGED_TOKEN = "changed token"  # noqa: S105 - a token of text
    TOO_MANY_TOKENS = "more tokens than max_tokens"
    ENDED_EARLY = "ended before max_tokens"
    UNKNOWN_SEQUENCE = "sequence that nobody asked for"
    ABORTED_PLACED = "aborted sequence placed"
    WRONG_START = "chunk starts at another position"
    WRONG_KIND = "row of the wrong kind"
    WRONG_BASED_ON = "wrong based_on"
    WRONG_STEP = "step out of order"
    WRONG_EPOCH = "plan of another session"
    DRAINING_PLACED = "placed on a draining executor"


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation: where it shows, and what was expected.

    Attributes:
        name: what.
        executor_id, step: in which plan or result; step 0 = before any.
        row: index in that plan, None where it concerns the plan or a slot without a row.
        slot: where it lives, None where it concerns the plan.
        request_id: whose row, "" where unknown.
        detail: both values, in words.
    """

    name: Name
    executor_id: int
    step: int
    row: int | None
    slot: int | None
    request_id: str
    detail: str

    def __str__(self) -> str:
        where = [f"executor {self.executor_id}", f"step {self.step}"]
        where += [f"row {self.row}"] if self.row is not None else []
        where += [f"slot {self.slot}"] if self.slot is not None else []
        where += [f"request {self.request_id}"] if self.request_id else []
        return f"{self.name}: {', '.join(where)}: {self.detail}"
