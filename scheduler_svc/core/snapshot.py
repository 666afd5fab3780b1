"""The whole core as plain data, and back. A restored core makes the same plans from then on. `frozen` makes the data.

The data is made of dicts with text keys, lists, ints, strings, bytes and bools, but for sampling objects, which stay as given.
A replayer finds in it what it needs to rebuild an executor: each sequence's tokens, slot, block table and confirmed length, the
tokens and chain of each published block, the executor's block tables as of its last result, and each plan in flight.
"""

from array import array
from typing import cast

from scheduler_svc.core.cohort import Cohort
from scheduler_svc.core.counters import Counters
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.frozen import BOOKS_FIELDS, BOOKS_LISTS, REQUEST_FIELDS, SEQUENCE_FIELDS, VERSION, Data
from scheduler_svc.core.prefix import chunk_of
from scheduler_svc.core.rows import PlanInFlight, PrefillRow, RowMap
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import CoreState
from scheduler_svc.core.types import Advance, CacheOp, ExecutorInfo, Layout, Limits, NewSequence, Plan, Request


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


def _restore_sequence(record: Data) -> Sequence:
    tokens = array("I", record["tokens"])
    request = Request(prompt=record["tokens"][: record["num_prompt"]], **{name: record[name] for name in REQUEST_FIELDS})
    seq = Sequence(request, tokens, state=State(record["state"]), blocks=list(record["blocks"]))
    for name in SEQUENCE_FIELDS:
        setattr(seq, name, record.get(name, 0))  # a field that a release before did not have
    return seq


def _restore_books(record: Data, core: CoreState) -> ExecutorBooks:
    info = ExecutorInfo(**{**record["info"], "layouts": tuple(Layout(layout) for layout in record["info"]["layouts"])})
    books = ExecutorBooks(info, core.limits, fingerprint=core.fingerprint)
    known = dict(core.sequences)
    known.update((departed["key"], _restore_sequence(departed)) for departed in record["departed"])
    for name in BOOKS_FIELDS:
        setattr(books, name, record[name])
    for name in BOOKS_LISTS:
        setattr(books, name, list(record[name]))
    for name, column in record["columns"].items():
        getattr(books.cols, name)[:] = column
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
    for seq in (*books.decoding, *books.retired.values(), *books.leaving.values()):
        books.watch_growth(seq)
    for slot, blocks in record["tables"]:
        books.tables.by_slot[slot] = []
        for block in blocks:
            books.tables.append(slot, block)
    books.in_flight.extend(_restore_flight(flight, known) for flight in record["in_flight"])
    if books.drafting is not None and record.get("drafting") is not None:
        books.drafting.restore(record["drafting"])
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
    rows = RowMap(seqs[:count], prefills, slots=record["slots"])
    rows.drafts, rows.tails = record.get("drafts"), record.get("tails")
    return PlanInFlight(Plan(**columns), rows)
