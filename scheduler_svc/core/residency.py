"""How a resident sequence comes and goes: placed, preempted, withdrawn, ended, tainted, settled. Each keeps all books in step."""

import numpy as np
from numpy.typing import NDArray

from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.prefix import PrefixChain
from scheduler_svc.core.queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence, State, by_key

Tokens = NDArray[np.uint32]


def place(books: ExecutorBooks, seq: Sequence, *, hits: list[int]) -> None:
    """Gives a waiting sequence a slot and the cached blocks `hits`; the caller took it off the queue."""
    books.kv.pool.hold(hits)
    seq.blocks = list(hits)
    seq.num_published = len(hits)
    seq.num_cached_tokens = len(hits) * books.kv.block_size
    seq.num_known = len(seq.tokens)
    seq.state = State.RUNNING
    books.take_slot(seq)


def preempt(books: ExecutorBooks, seq: Sequence, queue: WaitingQueue) -> None:
    """Takes a RUNNING sequence out for recompute: at once, or with its last result when plans in flight have rows of it."""
    books.stop_scheduling(seq)
    del books.running[seq.key]
    if books.is_in_flight(seq):
        seq.state = State.PREEMPTING
        books.leaving[seq.key] = seq
    else:
        give_back(books, seq)
        requeue(seq, queue)


def undo_preempt(books: ExecutorBooks, seq: Sequence, *, decoding: bool) -> None:
    """Takes back a `preempt` that left the sequence PREEMPTING, when the step that wanted its blocks sends nothing."""
    del books.leaving[seq.key]
    seq.state = State.RUNNING
    books.running[seq.key] = seq
    if decoding:
        books.start_decoding(seq)
    else:
        books.start_prefilling(seq)


def withdraw(books: ExecutorBooks, seq: Sequence) -> None:
    """The client or the clock ends a resident sequence; blocks stay held until plans in flight with rows of it have returned."""
    books.stop_scheduling(seq)
    books.running.pop(seq.key, None)
    books.leaving.pop(seq.key, None)
    seq.state = State.WITHDRAWN
    books.pending_aborted.append(seq.slot)
    if books.is_in_flight(seq):
        publish_confirmed(books, seq)  # it learns no more tokens, and a snapshot of now must know what can be hit later
        mark_irregular(books, seq)
        books.leaving[seq.key] = seq
    else:
        release(books, seq)
        seq.leave()


def end(books: ExecutorBooks, seq: Sequence) -> None:
    """The executor ended it. Rows in flight will be skipped, so its blocks return at once; its slot follows with the next plan."""
    books.stop_scheduling(seq)
    books.running.pop(seq.key, None)
    books.leaving.pop(seq.key, None)
    mark_irregular(books, seq)
    taint_readers(books, seq)
    seq.state = State.ENDED
    give_back(books, seq)


def settle(books: ExecutorBooks, queue: WaitingQueue) -> int:
    """Sequences whose last result has come give their blocks back and wait again, or are gone. Returns how many were tainted."""
    num_tainted = 0
    for seq in sorted((seq for seq in books.leaving.values() if not books.is_in_flight(seq)), key=by_key):
        del books.leaving[seq.key]
        if seq.state is State.WITHDRAWN:
            release(books, seq)
            seq.leave()
        else:
            num_tainted += seq.state is State.DISCARDING
            give_back(books, seq)
            requeue(seq, queue)
    return num_tainted


def give_back(books: ExecutorBooks, seq: Sequence) -> None:
    """Blocks return to the pool, the slot goes out with the next plan."""
    release(books, seq)
    books.pending_freed.append(seq.slot)
    seq.leave()


def release(books: ExecutorBooks, seq: Sequence) -> None:
    """Its blocks lose a holder; the full ones can be hit from now on."""
    publish_confirmed(books, seq)
    books.growing.remove(seq)
    books.kv.release(seq.blocks)


def requeue(seq: Sequence, queue: WaitingQueue) -> None:
    """It waits, in front, with its prompt and the tokens already delivered."""
    seq.state = State.WAITING
    queue.push_resumed(seq)


def mark_irregular(books: ExecutorBooks, seq: Sequence) -> None:
    """Results up to its last row need a look at each row."""
    books.irregular_until = max(books.irregular_until, books.cols.last_step_of(seq.slot))


def publish_scheduled(books: ExecutorBooks, seq: Sequence, *, num_tokens: int, confirmed: bool) -> None:
    """Offers the full blocks below `num_tokens`, whose tokens are known, to later plans; a duplicate stays private."""
    size = books.kv.block_size
    full = num_tokens // size
    if full <= seq.num_published:
        return
    chain, owner = books.prefix(seq, full), seq.request.key
    books.kv.index.add_chain(chain, seq.blocks, first=seq.num_published, end=full, owner=owner, confirmed=confirmed)
    seq.num_published = full
    if books.growing.name_of(seq) is not None:
        books.growing.put(seq, chain.parent(full))


def publish_confirmed(books: ExecutorBooks, seq: Sequence) -> None:
    """Offers the full blocks whose results have come and whose tokens are known."""
    if books.caching:
        num_tokens = min(books.cols.confirmed_of(seq.slot), len(seq.tokens))
        publish_scheduled(books, seq, num_tokens=num_tokens, confirmed=True)


def find_cached(books: ExecutorBooks, seq: Sequence, *, most: int) -> list[int]:
    """Blocks of the longest prefix of `seq` that others have computed, at most `most`; what decodes filled is named for it."""
    chain, index = books.prefix(seq, most), books.kv.index
    blocks = index.match(chain, most)
    while len(blocks) < most:
        growing = books.growing.take((chain.root, *chain.digests[: len(blocks)]), step=books.last_result_step)
        if not growing:
            break
        for other in growing:
            _publish_along(books, other, chain, most=most)
        blocks = index.match(chain, most)
    return blocks


def _publish_along(books: ExecutorBooks, seq: Sequence, chain: PrefixChain, *, most: int) -> None:
    """Names the next block of `seq`, which is kept under a name of `chain`, and goes on as long as it is the chain's: whoever does
    not lead where somebody looks costs one block, once."""
    full = min(books.cols.confirmed_of(seq.slot), len(seq.tokens)) // books.kv.block_size
    for number in range(seq.num_published, min(full, most)):
        publish_scheduled(books, seq, num_tokens=(number + 1) * books.kv.block_size, confirmed=True)
        if books.prefix(seq, number + 1).digests[number] != chain.digests[number]:
            return


def take_full_windows(books: ExecutorBooks, seqs: list[Sequence], *, lengths: list[int], tokens: Tokens) -> None:
    """The last window below each length is full in a sequence that decodes: its tokens, as the columns have them (u32 [seqs,
    window]), reach the sequence."""
    for seq, length, window in zip(seqs, lengths, tokens, strict=True):
        known = len(seq.held) - (length - books.cols.window)
        seq.held.frombytes(window[known:].tobytes())


def taint_readers(books: ExecutorBooks, seq: Sequence) -> None:
    """Un-publishes what `seq` has not computed; whoever relied on it discards its plans in flight and is computed again."""
    suspects = [seq]
    while suspects:
        source = suspects.pop()
        shared = set(books.kv.withdraw(source.blocks, owner=source.key))
        if not shared:
            continue
        holders = sorted((*books.running.values(), *books.leaving.values()), key=by_key)
        for reader in holders:
            if reader is source or reader.state is State.DISCARDING or shared.isdisjoint(reader.blocks):
                continue
            if reader.state is not State.WITHDRAWN:
                discard(books, reader)
            suspects.append(reader)


def discard(books: ExecutorBooks, seq: Sequence) -> None:
    """Its plans in flight read blocks that were never computed: what they emit does not count."""
    books.stop_scheduling(seq)
    books.running.pop(seq.key, None)
    mark_irregular(books, seq)
    seq.state = State.DISCARDING
    books.leaving[seq.key] = seq
