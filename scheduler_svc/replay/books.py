"""Books kept from frames alone: who lives where, with which blocks and tokens. None of the core's code is used.

`Books` only follows what the frames say; `audit` judges it, `explain` and `dump` tell it. Requests are matched to `NewSequence`
entries by prompt and sampling (a plan names slots, not keys); equal candidates are interchangeable and the lowest key is taken.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.plan.v1.plan_pb2 import NewSequence, StepPlan, StepResult
from drumline.scheduler.v1.scheduler_pb2 import Submit

PREFILL, PREFILL_LAST, DECODE = 1, 2, 3


@dataclass(slots=True)
class Life:
    """One request from arrival to end.

    Attributes:
        key: the core's; negative for a sequence that was already running when the recording began.
        tokens: prompt, then every token that a consumed result emitted for it.
        state: `waiting`, `resident`, `ended`.
        num_placed: times it entered an executor.
        aborted: an ABORT named it.
    """

    key: int
    request_id: str
    tokens: list[int]
    num_prompt: int
    sampling: bytes
    max_tokens: int
    salt: tuple[str, str] = ("", "")
    arrival_ns: int = 0
    deadline_ns: int = 0
    state: str = "waiting"
    num_placed: int = 0
    aborted: bool = False
    end: str = ""
    home: "Resident | None" = None

    @property
    def num_emitted(self) -> int:
        """Tokens that clients got."""
        return len(self.tokens) - self.num_prompt


@dataclass(slots=True)
class Resident:
    """A stay of a sequence in a slot.

    Attributes:
        num_known: tokens it entered with; num_cached of them were in cached blocks.
        length: confirmed by results. upper: what plans in flight can make of it.
        joined_step, last_step, ended_step, freed_step: plan that brought it, last plan with a row of it, result that ended it, plan
            that gave its slot back; 0 = not yet.
        discarded: it read a block that was never computed: what its plans in flight emit does not count.
        assumed: it was there before the recording began; nothing is known of it.
        chain: names of its full blocks; num_published of them can be hit.
    """

    life: Life
    executor_id: int
    slot: int
    num_known: int
    num_cached: int
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    upper: int = 0
    joined_step: int = 0
    last_step: int = 0
    ended_step: int = 0
    freed_step: int = 0
    num_unanswered: int = 0
    discarded: bool = False
    assumed: bool = False
    chain: list[bytes] = field(default_factory=list)
    num_published: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a plan, `repeat_rows` resolved. `start` is where it began by the plan (prefill) or by the books (decode)."""

    resident: Resident
    kind: int
    num_tokens: int
    start: int


@dataclass(slots=True)
class Step:
    """A plan with its rows, and its result once it came."""

    executor_id: int
    plan: StepPlan
    rows: list[Row]
    t_ns: int
    result: StepResult | None = None
    result_t_ns: int = 0


@dataclass(slots=True)
class Desk:
    """One executor in the books.

    Attributes:
        residents: who holds a slot by the plans sent. owners: block -> residents whose table names it.
        leaving: withdrawn residents with unanswered rows; the scheduler keeps their blocks until those return.
        outstanding: plans without a result, oldest first.
        row_slots: rows of the last plan that had rows, for `repeat_rows`.
        live: the executor's own block tables by slot, as of its last result.
        unjudged: blocks whose content is from before the recording began.
        epoch: of its first plan.
    """

    executor_id: int
    address: str
    caps: GetCapabilitiesResponse
    draining: bool = False
    residents: dict[int, Resident] = field(default_factory=dict)
    owners: dict[int, list[Resident]] = field(default_factory=dict)
    outstanding: deque[Step] = field(default_factory=deque)
    leaving: list[Resident] = field(default_factory=list)
    row_slots: list[int] = field(default_factory=list)
    live: dict[int, list[int]] = field(default_factory=dict)
    unjudged: set[int] = field(default_factory=set)
    epoch: int = 0
    last_step: int = 0
    last_rows_step: int = 0
    last_result: int = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that the scheduler can hand out: in no resident's table, and in none whose last rows are on their way."""
        held = {block for resident in self.leaving if resident.num_unanswered for block in resident.blocks}
        return int(self.caps.num_blocks) - len(held.union(self.owners))


class Books:
    """Follows frames. Every method takes what one frame carries and returns what the books made of it."""

    def __init__(self) -> None:
        self.lives: dict[int, Life] = {}
        self.desks: dict[int, Desk] = {}
        self._known: dict[tuple[int, bytes], list[Life]] = {}
        self.num_preempted = 0
        self._num_assumed = 0

    def handshake(self, executor_id: int, address: str, wire: bytes) -> Desk:
        """An executor joins, empty."""
        desk = Desk(executor_id, address, GetCapabilitiesResponse.FromString(wire))
        self.desks[executor_id] = desk
        return desk

    def arrival(self, first_key: int, arrival_ns: int, default_timeout_ms: int, wire: bytes) -> list[Life]:
        """Requests arrive and wait (one that the core refused waits for ever)."""
        made = []
        for index, one in enumerate(Submit.FromString(wire).sequences):
            life = Life(
                key=first_key + index,
                request_id=one.request_id,
                tokens=list(one.prompt_token_ids),
                num_prompt=len(one.prompt_token_ids),
                sampling=one.sampling.SerializeToString(deterministic=True),
                max_tokens=one.sampling.max_tokens,
                salt=(one.tenant, one.cache_salt),
                arrival_ns=arrival_ns,
                deadline_ns=arrival_ns + (one.timeout_ms or default_timeout_ms) * 1_000_000,
            )
            self.add(life)
            made.append(life)
        return made

    def add(self, life: Life) -> None:
        """A request that plans may bring in."""
        self.lives[life.key] = life
        self._known.setdefault((life.num_prompt, life.sampling), []).append(life)

    def lost(self, executor_id: int) -> Desk | None:
        """An executor leaves; its sequences wait again."""
        desk = self.desks.pop(executor_id, None)
        for resident in desk.residents.values() if desk else ():
            if resident.life.state == "resident":
                resident.life.state = "waiting"
        return desk

    def free(self, desk: Desk, slot: int, *, step: int, now_ns: int, withdrawn: bool = False) -> Resident | None:
        """A plan gives a slot back: its blocks are free from that plan on; a sequence that had not ended waits again."""
        resident = desk.residents.pop(slot, None)
        if resident is None:
            return None
        resident.freed_step = step
        for block in resident.blocks:
            holders = desk.owners.get(block, [])
            if resident in holders:
                holders.remove(resident)
            if not holders:
                desk.owners.pop(block, None)
        if withdrawn and resident.num_unanswered:
            desk.leaving.append(resident)
        life = resident.life
        if life.state == "resident" and life.home is resident:
            expired = 0 < life.deadline_ns <= now_ns
            if life.aborted or expired:
                life.state, life.end = "ended", "aborted" if life.aborted else "deadline"
            else:
                life.state = "waiting"
                self.num_preempted += 1
        return resident

    def enter(self, desk: Desk, new: NewSequence, *, step: int) -> tuple[Resident, Life | None]:
        """A sequence enters a slot. The second value is the request it was matched to, None if there was none (one is assumed)."""
        matched = self._match(new)
        life = matched or self._assume(new)
        life.state = "resident"
        life.num_placed += 1
        cached = int(new.num_cached_tokens)
        resident = Resident(
            life, desk.executor_id, new.slot, len(new.token_ids), cached, length=cached, upper=cached, joined_step=step
        )
        life.home = resident
        desk.residents[new.slot] = resident
        return resident, matched

    def rows(self, desk: Desk, plan: StepPlan) -> Iterator[Row]:
        """The plan's rows in order, each advancing its resident's `upper`; a slot that nobody holds gets an assumed resident."""
        if plan.repeat_rows:
            columns = [(slot, DECODE, 1, 0) for slot in desk.row_slots]
        else:
            columns = list(zip(plan.slot, plan.row_kind, plan.num_tokens, plan.start, strict=False))
            if columns:
                desk.row_slots = list(plan.slot)
        for slot, kind, num_tokens, start in columns:
            resident = desk.residents.get(slot) or self._stranger(desk, slot)
            begin = resident.upper if kind == DECODE else start
            resident.upper = begin + num_tokens
            resident.last_step = plan.step_id
            resident.num_unanswered += 1
            yield Row(resident, kind, num_tokens, begin)

    def end(self, resident: Resident, how: str, *, step: int) -> None:
        """A result ended a sequence."""
        resident.ended_step = resident.ended_step or step
        if resident.life.home is resident:
            resident.life.state, resident.life.end = "ended", resident.life.end or how

    def is_preempted(self, resident: Resident) -> bool:
        """It left its slot without an end."""
        return resident.life.home is resident and resident.life.state == "waiting"

    def waiting(self) -> list[Life]:
        """Requests without a slot, by key."""
        return [life for life in self.lives.values() if life.state == "waiting" and not life.aborted]

    def _match(self, new: NewSequence) -> Life | None:
        key = (int(new.num_prompt_tokens), new.sampling.SerializeToString(deterministic=True))
        tokens = list(new.token_ids)
        prompt = tokens[: new.num_prompt_tokens]
        found = [life for life in self._known.get(key, ()) if self._can_enter(life) and life.tokens[: life.num_prompt] == prompt]
        # equal prompts with equal seeds emit equal tokens: the one whose output agrees, else the oldest
        return min(found, key=lambda one: (one.state != "waiting", one.tokens != tokens, one.key), default=None)

    def _can_enter(self, life: Life) -> bool:
        """It waits, or it was preempted: its rows have all returned and only the plan that says so has not been made yet."""
        return life.state == "waiting" or (life.state == "resident" and life.home is not None and not life.home.num_unanswered)

    def _assume(self, new: NewSequence) -> Life:
        self._num_assumed += 1
        sampling = new.sampling.SerializeToString(deterministic=True)
        life = Life(-self._num_assumed, "", list(new.token_ids), new.num_prompt_tokens, sampling, new.sampling.max_tokens)
        self.lives[life.key] = life
        return life

    def _stranger(self, desk: Desk, slot: int) -> Resident:
        self._num_assumed += 1
        life = Life(-self._num_assumed, "", [], 0, b"", 0, state="resident")
        self.lives[life.key] = life
        resident = Resident(life, desk.executor_id, slot, 0, 0, assumed=True)
        desk.residents[slot] = resident
        return resident


def settings_of(settings: dict[str, Any], name: str, default: int) -> int:
    """One number of the recorded `Limits`, wherever the shell put it."""
    limits = settings.get("limits", settings)
    value = limits.get(name, default) if isinstance(limits, dict) else default
    return value if isinstance(value, int) else default
