"""The whole core as plain data, and back. A restored core makes the same plans from then on.

The data is made of dicts with text keys, lists, ints, strings, bytes and bools, but for sampling objects, which stay as given.
A replayer finds in it what it needs to rebuild an executor: each sequence's tokens, slot, block table and confirmed length, the
tokens and chain of each published block, the executor's block tables as of its last result, and each plan in flight.
"""

from array import array
from dataclasses import asdict, fields
from typing import Any, cast

import numpy as np

from scheduler_svc.core.cohort import Cohort
from scheduler_svc.core.counters import Counters
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.prefix import PrefixIndex, chunk_of, token_ids
from scheduler_svc.core.rows import PlanInFlight, PrefillRow, RowMap
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import CoreState
from scheduler_svc.core.types import Advance, CacheOp, ExecutorInfo, Layout, Limits, NewSequence, Plan, Request

VERSION = 1
Data = dict[str, Any]
REQUEST_FIELDS = tuple(f.name for f in fields(Request) if f.name != "prompt")
SEQUENCE_FIELDS = (
    "executor_id",
    "slot",
    "num_known",
    "num_cached_tokens",
    "num_published",
    "num_prompt_logprobs_done",
    "started",
    "num_placements",
    "num_crashes",
    "urgency",
)
BOOKS_FIELDS = ("draining", "next_step", "last_result_step", "cohort_id", "irregular_until", "last_all_decode")
BOOKS_LISTS = ("free_slots", "pending_freed", "pending_aborted", "last_keys")
COLUMNS = ("upper", "confirmed", "capacity", "limit", "last_step")
PLAN_FIELDS = tuple(f.name for f in fields(Plan) if f.name != "new_sequences")


def take_snapshot(core: CoreState) -> dict[str, object]:
    """See the module. Shares nothing that changes with the core."""
    return {
        "version": VERSION,
        "limits": asdict(core.limits),
        "counters": asdict(core.counters),
        "fit_changed": core.fit_changed,
        "sequences": [_sequence(seq) for _, seq in sorted(core.sequences.items())],
        "resumed": [seq.key for seq in core.queue.resumed],
        "fresh": list(core.queue.fresh),
        "executors": [_books(books, core) for books in core.executors.values()],
    }


def limits_of(data: dict[str, object]) -> Limits:
    """The limits that a snapshot was taken under. Raises ValueError for another version of the format."""
    if data["version"] != VERSION:
        raise ValueError(f"snapshot version {data['version']}, expected {VERSION}")
    return Limits(**cast(Data, data["limits"]))


def restore_snapshot(core: CoreState, data: Data) -> None:
    """Fills a fresh core."""
    core.counters = Counters(**data["counters"])
    core.fit_changed = data["fit_changed"]
    core.sequences.update((record["key"], _restore_sequence(record)) for record in data["sequences"])
    for key in data["resumed"]:
        core.queue.push_resumed(core.sequences[key])
    for key in data["fresh"]:
        core.queue.push(core.sequences[key])
    for seq in core.sequences.values():
        core.deadlines.add(seq.request.deadline_ns, seq.key)
    for record in data["executors"]:
        books = _restore_books(record, core)
        core.executors[books.executor_id] = books


def _sequence(seq: Sequence) -> Data:
    record: Data = {name: getattr(seq.request, name) for name in REQUEST_FIELDS}
    record.update((name, getattr(seq, name)) for name in SEQUENCE_FIELDS)
    return {**record, "tokens": list(seq.tokens), "num_prompt": seq.num_prompt, "state": int(seq.state), "blocks": list(seq.blocks)}


def _restore_sequence(record: Data) -> Sequence:
    tokens = array("I", record["tokens"])
    request = Request(prompt=record["tokens"][: record["num_prompt"]], **{name: record[name] for name in REQUEST_FIELDS})
    seq = Sequence(request, tokens, state=State(record["state"]), blocks=list(record["blocks"]))
    for name in SEQUENCE_FIELDS:
        setattr(seq, name, record.get(name, 0))  # a field that a release before did not have
    return seq


def _books(books: ExecutorBooks, core: CoreState) -> Data:
    referenced = {seq.key: seq for seq in books.leaving.values()}
    for flight in books.in_flight:
        referenced.update((seq.key, seq) for seq in flight.rows.seqs)
    pool = books.kv.pool
    return {
        "info": {**asdict(books.info), "layouts": [int(layout) for layout in books.info.layouts]},
        **{name: getattr(books, name) for name in BOOKS_FIELDS},
        **{name: list(getattr(books, name)) for name in BOOKS_LISTS},
        "columns": {name: getattr(books.cols, name).tolist() for name in COLUMNS},
        "cohort": asdict(books.cohort),
        "releasing": [list(pair) for pair in books.releasing],
        "running": sorted(books.running),
        "prefilling": [seq.key for seq in books.prefilling],
        "decoding": [seq.key for seq in books.decoding],
        "retired": sorted(books.retired),
        "leaving": sorted(books.leaving),
        "departed": [_sequence(seq) for key, seq in sorted(referenced.items()) if key not in core.sequences],
        "refs": list(pool.refs),
        "empty": list(pool.empty),
        "cached": list(pool.cached),
        "published": [_published(books.kv.index, block) for block in books.kv.index.published()],
        "tables": [[slot, list(blocks)] for slot, blocks in sorted(books.tables.by_slot.items())],
        "in_flight": [_flight(flight) for flight in books.in_flight],
    }


def _published(index: PrefixIndex, block: int) -> Data:
    return {
        "block": block,
        "digest": index.digests[block],
        "parent": index.parents[block],
        "owner": index.owners[block],
        "confirmed": index.confirmed[block],
        "tokens": token_ids(index.chunks[block]),
    }


def _flight(flight: PlanInFlight) -> Data:
    plan: Data = {name: getattr(flight.plan, name) for name in PLAN_FIELDS}
    for name, value in plan.items():
        plan[name] = list(value) if isinstance(value, list) else int(value) if not isinstance(value, bool) else value
    plan["new_sequences"] = [{f.name: getattr(new, f.name) for f in fields(NewSequence)} for new in flight.plan.new_sequences]
    rows = flight.rows
    return {
        "plan": plan,
        "keys": list(rows.keys),
        "slots": rows.slots.tolist(),
        "num_decodes": rows.num_decodes,
        "prefills": [[row.start, row.num_tokens, row.is_last] for row in rows.prefills],
    }


def _restore_books(record: Data, core: CoreState) -> ExecutorBooks:
    info = ExecutorInfo(**{**record["info"], "layouts": tuple(Layout(layout) for layout in record["info"]["layouts"])})
    books = ExecutorBooks(info, core.limits, fingerprint=core.fingerprint)
    known = dict(core.sequences)
    known.update((departed["key"], _restore_sequence(departed)) for departed in record["departed"])
    for name in BOOKS_FIELDS:
        setattr(books, name, record[name])
    for name in BOOKS_LISTS:
        setattr(books, name, list(record[name]))
    for name in COLUMNS:
        setattr(books.cols, name, np.array(record["columns"][name], np.int64))
    books.cohort = Cohort(**record.get("cohort", {}))
    books.releasing.extend((step, slot) for step, slot in record["releasing"])
    books.running = {key: known[key] for key in record["running"]}
    books.prefilling = [known[key] for key in record["prefilling"]]
    books.decoding = [known[key] for key in record["decoding"]]
    books.retired = {key: known[key] for key in record["retired"]}
    books.leaving = {key: known[key] for key in record["leaving"]}
    for seq in (*books.running.values(), *books.leaving.values()):
        seq.cols = books.cols
    _restore_kv(books, record)
    for slot, blocks in record["tables"]:
        books.tables.by_slot[slot] = []
        for block in blocks:
            books.tables.append(slot, block)
    books.in_flight.extend(_restore_flight(flight, known) for flight in record["in_flight"])
    return books


def _restore_kv(books: ExecutorBooks, record: Data) -> None:
    pool = books.kv.pool
    pool.refs = list(record["refs"])
    pool.empty.clear()
    pool.empty.extend(record["empty"])
    pool.cached.update((block, None) for block in record["cached"])
    for entry in record["published"]:
        named = {name: value for name, value in entry.items() if name not in ("block", "tokens")}
        books.kv.index.add(entry["block"], chunk=chunk_of(entry["tokens"]), **named)


def _restore_flight(record: Data, known: dict[int, Sequence]) -> PlanInFlight:
    columns = dict(record["plan"])
    columns["new_sequences"] = [NewSequence(**new) for new in columns["new_sequences"]]
    columns["cache_op"] = CacheOp(columns["cache_op"])
    columns["layout"] = Layout(columns["layout"])
    columns["advance"] = Advance(columns["advance"])
    seqs = [known[key] for key in record["keys"]]
    count = record["num_decodes"]
    prefills = [PrefillRow(seq, *row) for seq, row in zip(seqs[count:], record["prefills"], strict=True)]
    return PlanInFlight(Plan(**columns), RowMap(seqs[:count], prefills, slots=record["slots"]))
