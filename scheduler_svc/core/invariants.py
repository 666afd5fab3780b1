"""What must hold between any two calls into the core. Tests run it after every one."""

from collections import Counter

from scheduler_svc.core.errors import InvariantViolation
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import CoreState


def check_invariants(core: CoreState) -> None:
    """Raises InvariantViolation naming the first invariant that does not hold."""
    _check_homes(core)
    for books in core.executors.values():
        _check_groups(books)
        _check_blocks(books)
        _check_published(books)
        _check_growing(books)
        _check_lengths(books, core)
        _check_slots(books)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantViolation(what)


def _check_homes(core: CoreState) -> None:
    """Each living sequence is in exactly one place, and that place agrees with its state."""
    waiting = [seq.key for seq in core.queue]
    _require(len(waiting) == len(set(waiting)), "a sequence waits twice")
    _require(waiting == sorted(s.key for s in core.queue.resumed) + sorted(core.queue.fresh), "the queue is not in key order")
    _require(core.queue.num_fresh_tokens == sum(seq.num_prompt for seq in core.queue.fresh.values()), "num_fresh_tokens is wrong")
    resident: list[int] = []
    for books in core.executors.values():
        resident += books.running
        resident += [key for key, seq in books.leaving.items() if seq.state is not State.WITHDRAWN]
    _require(sorted(waiting + resident) == sorted(core.sequences), "a living sequence is nowhere, or in two places")
    for key in waiting:
        seq = core.sequences[key]
        _require(seq.state is State.WAITING and seq.slot < 0 and not seq.blocks, f"waiting sequence {key} is {seq.state.name}")


def _check_groups(books: ExecutorBooks) -> None:
    groups = [seq.key for seq in (*books.prefilling, *books.decoding, *books.retired.values())]
    _require(sorted(groups) == sorted(books.running), "a running sequence is in none of prefilling, decoding, retired, or in two")
    for group in (books.prefilling, books.decoding):
        keys = [seq.key for seq in group]
        _require(keys == sorted(keys), "residents are not in key order")
    for seq in books.running.values():
        _require(
            seq.state is State.RUNNING and seq.executor_id == books.executor_id, f"sequence {seq.key} runs as {seq.state.name}"
        )
    for seq in books.leaving.values():
        _require(
            seq.state in (State.PREEMPTING, State.DISCARDING, State.WITHDRAWN), f"sequence {seq.key} leaves as {seq.state.name}"
        )
        _require(books.is_in_flight(seq), f"sequence {seq.key} leaves without a plan in flight")


def _residents(books: ExecutorBooks) -> list[Sequence]:
    return [*books.running.values(), *books.leaving.values()]


def _check_blocks(books: ExecutorBooks) -> None:
    """Every block is held, cached or empty, once; reference counts are the number of tables that name it."""
    pool = books.kv.pool
    uses = Counter(block for seq in _residents(books) for block in seq.blocks)
    for seq in _residents(books):
        _require(len(seq.blocks) == len(set(seq.blocks)), f"sequence {seq.key} names a block twice")
    held = {block for block in range(pool.num_blocks) if pool.refs[block]}
    _require(
        all(pool.refs[block] == uses[block] for block in range(pool.num_blocks)), "a reference count is not its number of holders"
    )
    places = sorted([*held, *pool.empty, *pool.cached])
    _require(places == list(range(pool.num_blocks)), "a block is leaked, or in two places")


def _check_published(books: ExecutorBooks) -> None:
    """An unheld block is published iff it is in the LRU; an unconfirmed one is held by whoever computes it."""
    pool, index = books.kv.pool, books.kv.index
    published = index.published()
    _require(all(block in published for block in pool.cached), "a cached block is not published")
    _require(not any(block in published for block in pool.empty), "an empty block is published")
    owners = {seq.key: seq for seq in _residents(books)}
    for block in published:
        whole = bool(index.digests[block]) and len(index.chunks[block]) == 4 * books.kv.block_size
        _require(whole, f"block {block} is published wrongly")
        if not index.confirmed[block]:
            owner = owners.get(index.owners[block])
            _require(owner is not None and block in owner.blocks, f"unconfirmed block {block} outlives its owner")
            _require(owner is None or books.is_in_flight(owner), f"unconfirmed block {block} has no plan in flight")


def _check_growing(books: ExecutorBooks) -> None:
    """Whoever decodes is kept by the last name that it published, and so is nobody who is gone."""
    residents = _residents(books)
    for seq in books.decoding if books.caching else ():
        name = books.prefix(seq, seq.num_published).parent(seq.num_published)
        _require(books.growing.name_of(seq) == name, f"sequence {seq.key} decodes and its blocks cannot be found")
    _require(set(books.growing) <= {seq.key for seq in residents}, "a sequence that is gone still grows")


def _check_lengths(books: ExecutorBooks, core: CoreState) -> None:
    """confirmed <= upper <= limit and capacity; blocks cover the upper length; nothing runs past prompt + max_tokens."""
    cols = books.cols
    for seq in _residents(books):
        slot, name = seq.slot, f"sequence {seq.key}"
        upper, confirmed = cols.upper_of(slot), cols.confirmed_of(slot)
        _require(
            confirmed <= upper <= int(cols.limit[slot]), f"{name}: {confirmed} <= {upper} <= {int(cols.limit[slot])} does not hold"
        )
        _require(int(cols.limit[slot]) <= min(seq.max_length, books.info.max_model_len), f"{name} may run past its bounds")
        _require(int(cols.capacity[slot]) == len(seq.blocks) * books.kv.block_size, f"{name}: capacity is not its blocks")
        _require(upper <= int(cols.capacity[slot]), f"{name}: blocks do not cover the upper length")
        _require(len(seq.tokens) <= seq.max_total, f"{name} has more tokens than it may")
        if seq.state is State.RUNNING and not books.is_in_flight(seq):
            _require(confirmed == upper, f"{name} has nothing in flight and lengths differ")
    _require(len(books.in_flight) <= core.plans_in_flight(books), "too many plans in flight")
    steps = [flight.plan.step_id for flight in books.in_flight]
    _require(steps == list(range(books.last_result_step + 1, books.next_step)), "plans in flight are not consecutive")


def _check_slots(books: ExecutorBooks) -> None:
    """Every slot is free, held, announced or on its way back, once; no plan in flight has a row in a free slot."""
    held = [seq.slot for seq in _residents(books) if seq.slot not in books.pending_aborted and seq.slot not in _returning(books)]
    places = [*held, *books.free_slots, *books.pending_freed, *books.pending_aborted, *_returning(books)]
    _require(sorted(places) == list(range(books.info.max_num_seqs)), "a slot is leaked, or in two places")
    named = {slot for flight in books.in_flight for slot in flight.rows.slots}
    _require(named.isdisjoint(books.free_slots), "a plan in flight names a free slot")
    _require(len(books.running) <= books.max_rows, "too many sequences run")


def _returning(books: ExecutorBooks) -> list[int]:
    return [slot for _, slot in books.releasing]
