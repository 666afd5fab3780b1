"""The core at one moment, kept in pieces that nothing changes any more, and the plain data that they stand for.

Taking it costs copies of a few lists and of token memory; the plain data, fifty times as much work, is made when somebody wants
it, on any thread. The shape of the data is described in `snapshot`.
"""

from collections.abc import Callable
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, Final

from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.prefix import token_ids
from scheduler_svc.core.rows import PlanInFlight
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import CoreState
from scheduler_svc.core.types import NewSequence, Plan, Request

VERSION: Final = 1
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
PLAN_FIELDS = tuple(f.name for f in fields(Plan) if f.name != "new_sequences")
_PUBLISHED_BYTES: Final = 150
_values = attrgetter(*SEQUENCE_FIELDS)


class Frozen:
    """Everything that the core knew when this was made. Shares with it what never changes.

    Attributes:
        num_bytes: about as many as its plain data has when packed.
    """

    def __init__(self, core: CoreState) -> None:
        self._head: Data = {
            "version": VERSION,
            "limits": asdict(core.limits),
            "counters": asdict(core.counters),
            "fit_changed": core.fit_changed,
        }
        self._sequences = [_freeze(core.sequences[key]) for key in sorted(core.sequences)]
        self._queue: Data = {"resumed": [seq.key for seq in core.queue.resumed], "fresh": list(core.queue.fresh)}
        self._executors = [_freeze_books(books, core) for books in core.executors.values()]
        num_published = sum(len(books.kv.index) for books in core.executors.values())
        num_tokens = sum(len(seq.held) for seq in core.sequences.values())
        self.num_bytes = 4 * num_tokens + 300 * len(core.sequences) + _PUBLISHED_BYTES * num_published

    def data(self) -> Data:
        """Plain data, made anew."""
        executors = [make() for make in self._executors]
        return {**self._head, "sequences": [make() for make in self._sequences], **self._queue, "executors": executors}


def _freeze(seq: Sequence) -> Callable[[], Data]:
    request, values, state = seq.request, _values(seq), int(seq.state)
    tokens, blocks = seq.tokens.tobytes(), seq.blocks[:]

    def data() -> Data:
        record: Data = {name: getattr(request, name) for name in REQUEST_FIELDS}
        record.update(zip(SEQUENCE_FIELDS, values, strict=True))
        return {**record, "tokens": token_ids(tokens), "num_prompt": len(request.prompt), "state": state, "blocks": blocks[:]}

    return data


def _freeze_books(books: ExecutorBooks, core: CoreState) -> Callable[[], Data]:
    referenced = {seq.key: seq for seq in books.leaving.values()}
    for flight in books.in_flight:
        referenced.update(zip(flight.rows.keys, flight.rows.seqs, strict=True))
    departed = [_freeze(referenced[key]) for key in sorted(referenced.keys() - core.sequences.keys())]
    head: Data = {
        "info": {**asdict(books.info), "layouts": [int(layout) for layout in books.info.layouts]},
        **{name: getattr(books, name) for name in BOOKS_FIELDS},
        **{name: list(getattr(books, name)) for name in BOOKS_LISTS},
    }
    columns = books.cols.copies()
    groups: Data = {
        "cohort": asdict(books.cohort),
        "releasing": [list(pair) for pair in books.releasing],
        "running": sorted(books.running),
        "prefilling": [seq.key for seq in books.prefilling],
        "decoding": [seq.key for seq in books.decoding],
        "retired": sorted(books.retired),
        "leaving": sorted(books.leaving),
    }
    pool = books.kv.pool
    blocks: Data = {"refs": pool.refs[:], "empty": list(pool.empty), "cached": list(pool.cached)}
    published = _freeze_published(books)
    tables = [(slot, table[:]) for slot, table in books.tables.by_slot.items()]
    flights = list(books.in_flight)
    drafting = None if books.drafting is None else books.drafting.data()

    def data() -> Data:
        return {
            **head,
            "columns": {name: column.tolist() for name, column in columns.items()},
            **groups,
            "departed": [make() for make in departed],
            **blocks,
            "published": published(),
            "tables": [list(pair) for pair in sorted(tables)],
            "in_flight": [_flight(flight) for flight in flights],
            "drafting": drafting,
        }

    return data


def _freeze_published(books: ExecutorBooks) -> Callable[[], list[Data]]:
    index = books.kv.index
    digests, parents = index.digests[:], index.parents[:]
    chunks, owners, confirmed = index.chunks[:], index.owners[:], index.confirmed[:]

    def data() -> list[Data]:
        return [
            {
                "block": block,
                "digest": digest,
                "parent": parents[block],
                "owner": owners[block],
                "confirmed": confirmed[block],
                "tokens": token_ids(chunks[block]),
            }
            for block, digest in enumerate(digests)
            if digest
        ]

    return data


def _flight(flight: PlanInFlight) -> Data:
    plan: Data = {name: getattr(flight.plan, name) for name in PLAN_FIELDS}
    for name, value in plan.items():
        plan[name] = list(value) if isinstance(value, list) else int(value) if not isinstance(value, bool) else value
    plan["new_sequences"] = [{f.name: getattr(new, f.name) for f in fields(NewSequence)} for new in flight.plan.new_sequences]
    rows = flight.rows
    return {
        "plan": plan,
        "keys": list(rows.keys),
        "slots": list(rows.slots),
        "num_decodes": rows.num_decodes,
        "prefills": [[row.start, row.num_tokens, row.is_last] for row in rows.prefills],
        "drafts": rows.drafts,
        "tails": rows.tails,
    }
