"""Books at a snapshot, so that a recording can be read from the middle of a session.

The snapshot is the core's own state as plain data (see `core/snapshot.py`); nothing of the core's code runs here.
"""

from typing import Any

from drumline.common.v1.common_pb2 import SamplingParams
from drumline.plan.v1.plan_pb2 import StepPlan
from drumline.trace.frames import unpack_state
from scheduler_svc.replay.books import DECODE, PREFILL, PREFILL_LAST, Books, Desk, Life, Resident, Row, Step

PREEMPTING, DISCARDING, WITHDRAWN = 3, 4, 5
"""States of a sequence in a snapshot."""


def seed_books(books: Books, payload: list[Any]) -> dict[str, Any]:
    """Fills empty books from a SNAPSHOT frame's payload; returns the state that it holds.

    Raises KeyError, TypeError or ValueError for a payload that is no snapshot.
    """
    state: dict[str, Any] = unpack_state(payload[0], sampling=SamplingParams.FromString)
    for record in state["sequences"]:
        books.add(_life(record))
    records: dict[int, dict[str, Any]] = {one["info"]["executor_id"]: one for one in state["executors"]}
    for executor_id, address, capabilities, plans in payload[1]:
        desk = books.handshake(executor_id, address, capabilities)
        record = records[executor_id]
        _seed_desk(books, desk, record, sequences=state["sequences"])
        for flight, raw in zip(record["in_flight"], plans, strict=True):
            desk.outstanding.append(_step(desk, flight, StepPlan.FromString(raw)))
    return state


def _life(record: dict[str, Any]) -> Life:
    return Life(
        key=record["key"],
        request_id=record["request_id"],
        tokens=list(record["tokens"]),
        num_prompt=record["num_prompt"],
        sampling=record["sampling"].SerializeToString(deterministic=True) if record["sampling"] is not None else b"",
        max_tokens=record["max_tokens"],
        salt=(record["tenant"], record["cache_salt"]),
        arrival_ns=record["arrival_ns"],
        deadline_ns=record["deadline_ns"],
        state="resident" if record["slot"] >= 0 else "waiting",
        num_placed=int(record["started"]),
    )


def _seed_desk(books: Books, desk: Desk, record: dict[str, Any], *, sequences: list[dict[str, Any]]) -> None:
    desk.draining = record["draining"]
    desk.last_step = desk.last_rows_step = record["next_step"] - 1
    desk.last_result = record["last_result_step"]
    desk.live = {slot: list(blocks) for slot, blocks in record["tables"]}
    desk.unjudged = set(record["cached"]) | {entry["block"] for entry in record["published"]}
    here = [one for one in sequences if one["executor_id"] == desk.executor_id and one["slot"] >= 0]
    for one in here:
        _seat(desk, books.lives[one["key"]], one, columns=record["columns"])
    for one in record["departed"]:
        if one["slot"] >= 0:
            life = _life(one)
            life.aborted = True
            resident = _seat(desk, life, one, columns=record["columns"])
            if one["slot"] not in record["pending_aborted"]:
                desk.residents.pop(resident.slot)
                desk.leaving.append(resident)
    for slot in (*record["pending_freed"], *record["pending_aborted"]):
        if slot not in desk.residents:
            desk.residents[slot] = _gone(desk, slot)
    for resident in desk.residents.values():
        # full ones can be hit although the core has not named them yet
        desk.unjudged.update(resident.blocks[: resident.length // desk.caps.block_size])
        for block in resident.blocks:
            desk.owners.setdefault(block, []).append(resident)
    slots = {one["key"]: one["slot"] for one in here}
    desk.row_slots = [slots[key] for key in record["last_keys"] if key in slots]
    if record["in_flight"]:
        desk.row_slots = list(record["in_flight"][-1]["slots"])


def _seat(desk: Desk, life: Life, record: dict[str, Any], *, columns: dict[str, list[int]]) -> Resident:
    slot = record["slot"]
    resident = Resident(
        life,
        desk.executor_id,
        slot,
        num_known=record["num_known"],
        num_cached=record["num_cached_tokens"],
        blocks=list(record["blocks"]),
        length=columns["confirmed"][slot],
        upper=columns["upper"][slot],
        last_step=columns["last_step"][slot],
        discarded=record["state"] == DISCARDING,
        num_published=record["num_published"],
    )
    life.home = resident
    desk.residents[slot] = resident
    return resident


def _gone(desk: Desk, slot: int) -> Resident:
    """A slot that the next plan gives back, of a sequence that the core has already let go."""
    life = Life(-1 - slot, "", [], 0, b"", 0, state="ended")
    return Resident(life, desk.executor_id, slot, 0, 0, assumed=True)


def _step(desk: Desk, flight: dict[str, Any], plan: StepPlan) -> Step:
    """A plan in flight with its rows; a row whose sequence has ended since will be reported as skipped."""
    rows = []
    leaving = {resident.slot: resident for resident in desk.leaving}
    for index, slot in enumerate(flight["slots"]):
        resident = leaving.get(slot) or desk.residents.get(slot)
        if resident is None or resident.assumed:
            resident = resident or _gone(desk, slot)
            resident.ended_step = desk.last_result
        resident.num_unanswered += 1
        if index < flight["num_decodes"]:
            rows.append(Row(resident, DECODE, plan.num_tokens[index] if plan.num_tokens else 1, 0))
        else:
            start, num_tokens, is_last = flight["prefills"][index - flight["num_decodes"]]
            rows.append(Row(resident, PREFILL_LAST if is_last else PREFILL, num_tokens, start))
    if plan.session_epoch:
        desk.epoch = int(plan.session_epoch)
    return Step(desk.executor_id, plan, rows, 0)
