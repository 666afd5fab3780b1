"""The historical rule: sequences whose caches differ in length cannot share a forward pass, so one bucket runs a step.

Everybody else sits idle in memory. With B sequences at D lengths, B/D of them run: the bucket shattering law. The rule is kept
exactly, but for five corrections (decision record 0008): the bound on sequences always holds, completions never become prompts
again, ended sequences leave at once, ties are decided by a total order, and nobody waits for ever.
"""

from collections import defaultdict
from itertools import islice

from scheduler_svc.core.bucket_key import BucketKey, Candidate, bucket_key_of, cache_bucket_len, ragged_bucket_len
from scheduler_svc.core.cadence import check_cadence, decode_op, prompt_op
from scheduler_svc.core.coalesce import choose_bucket
from scheduler_svc.core.cohort_rows import decode_rows, prompt_rows, start_of
from scheduler_svc.core.dense_room import rows_side_by_side
from scheduler_svc.core.draft import StepDraft
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.paged import MAX_CONSIDERED, PagedAdmission
from scheduler_svc.core.policy import Room, Router
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.types import Advance, Layout, Limits


class BucketedAdmission:
    """One bucket a step, one plan in flight: keys and cadence need true lengths and membership.

    A step is dense: completions, or prompts of one length. A bucket that has both runs as two plans, completions first; the prompts
    are owed and nothing else is decided in between.
    """

    name = "bucketed"
    advance = Advance.COHORT

    def __init__(self, limits: Limits) -> None:
        """Raises ContradictingCadence when layout and cadence cannot both be kept."""
        check_cadence(limits)
        self.layout = Layout[limits.layout.upper()]
        self._prefill_floor = limits.prefill_floor
        self._memory = PagedAdmission(limits)  # blocks are counted, and prefixes hit, in every layout

    def plans_in_flight(self, limits: Limits) -> int:
        """See `AdmissionPolicy`."""
        return 1

    def room(self, books: ExecutorBooks) -> Room:
        """See `AdmissionPolicy`."""
        return self._memory.room(books)

    def fits(self, seq: Sequence, room: Room, *, hits: list[int]) -> bool:
        """See `AdmissionPolicy`."""
        return self._memory.fits(seq, room, hits=hits)

    def lookup(self, seq: Sequence, books: ExecutorBooks) -> list[int]:
        """See `AdmissionPolicy`."""
        return self._memory.lookup(seq, books)

    def may_hit(self, seq: Sequence, rooms: list[Room]) -> list[Room]:
        """See `AdmissionPolicy`."""
        return self._memory.may_hit(seq, rooms)

    def choose(self, draft: StepDraft, router: Router) -> None:
        """See `AdmissionPolicy`."""
        grant = draft.books.grant
        draft.layout, draft.advance = grant.layout, Advance.PER_SEQUENCE if grant.granted else Advance.COHORT
        owed, draft.books.cohort.owed = draft.books.cohort.owed, []
        if owed and self._run_prompts(draft, _find(draft, owed)):
            return
        seqs = {seq.key: seq for seq in (*draft.books.decoding, *draft.books.prefilling, *self._newcomers(draft, router))}
        if seqs:
            self._decide(draft, seqs)

    def _decide(self, draft: StepDraft, seqs: dict[int, Sequence]) -> None:
        """Sorts the candidates into buckets and runs one; the others have waited once more."""
        cohort = draft.books.cohort
        rows = [self._candidate(draft, seq) for seq in seqs.values()]
        ragged_len = ragged_bucket_len(rows, grant=draft.books.grant)
        buckets: dict[BucketKey, list[Candidate]] = defaultdict(list)
        for row in rows:
            buckets[bucket_key_of(row, ragged_len=ragged_len)].append(row)
        running = seqs.keys() & set(cohort.running) & draft.books.running.keys()
        discrete = not running or (len(running) == len(rows) and not len(draft.queue))
        floor = 0 if draft.books.grant.buckets_by_cache_length() else self._prefill_floor
        chosen = self._that_fit(draft, buckets[choose_bucket(buckets, discrete=discrete, prefill_floor=floor)])
        for row in rows:
            seqs[row.key].urgency += 1
        for row in chosen:
            seqs[row.key].urgency = 0
        draft.num_offered, draft.num_buckets, draft.num_chosen = len(rows), len(buckets), len(chosen)
        completions = [seqs[row.key] for row in chosen if not row.is_prompt]
        prompts = [seqs[row.key] for row in chosen if row.is_prompt]
        cohort.running = [row.key for row in chosen]
        if not completions:
            self._run_prompts(draft, prompts)
            return
        self._run_completions(draft, completions)
        cohort.owed = [seq.key for seq in prompts]

    def _that_fit(self, draft: StepDraft, rows: list[Candidate]) -> list[Candidate]:
        """A ragged cohort of a dense layout is as wide as its longest row: those that find no room beside the others wait."""
        grant, info = draft.books.grant, draft.books.info
        if grant.buckets_by_cache_length() or grant.layout is Layout.PAGED or rows[0].is_prompt:
            return rows
        return rows_side_by_side(rows, num_columns=info.num_blocks * info.block_size)

    def _candidate(self, draft: StepDraft, seq: Sequence) -> Candidate:
        is_prompt = seq.state is not State.RUNNING or draft.books.cols.upper_of(seq.slot) < seq.num_known
        reported = None if is_prompt else draft.books.cols.confirmed_of(seq.slot)
        return Candidate(
            key=seq.key,
            length=cache_bucket_len(reported, num_tokens=len(seq.tokens)),
            num_tokens=len(seq.tokens),
            is_prompt=is_prompt,
            offset=start_of(seq, draft, policy=self) if is_prompt else 0,
            urgency=seq.urgency,
        )

    def _newcomers(self, draft: StepDraft, router: Router) -> list[Sequence]:
        """Waiting sequences that could all enter now, in queue order."""
        books, found = draft.books, list[Sequence]()
        if books.draining:
            return found
        room = self.room(books)
        for seq in islice(draft.queue, MAX_CONSIDERED):
            here = router.belongs(seq, books)
            if here is None:
                break
            if not here:
                continue
            if not self.fits(seq, room, hits=self.lookup(seq, books)):
                break
            found.append(seq)
            room.promise(num_tokens=len(seq.tokens), num_blocks=books.kv.blocks_for(len(seq.tokens) + 1))
        return found

    def _run_completions(self, draft: StepDraft, seqs: list[Sequence]) -> None:
        cohort, every_step = draft.books.cohort, draft.books.grant.assembles_every_step()
        rows = decode_rows(draft, seqs)
        if len(rows):
            draft.cache_op = decode_op(draft.books.grant.layout, changed=rows.keys != cohort.assembled, every_step=every_step)
            cohort.assembled = list(rows.keys)

    def _run_prompts(self, draft: StepDraft, seqs: list[Sequence]) -> bool:
        """Whether any could run."""
        offset = prompt_rows(draft, seqs, policy=self)
        if draft.prefills:
            draft.cache_op = prompt_op(draft.books.grant.layout, offset=offset)
            draft.books.cohort.assembled = []
        return bool(draft.prefills)


def _find(draft: StepDraft, keys: list[int]) -> list[Sequence]:
    """Those of `keys` that still wait to be fed here, in order."""
    wanted = set(keys)
    here = {seq.key: seq for seq in (*draft.books.prefilling, *draft.queue) if seq.key in wanted}
    return [here[key] for key in keys if key in here]
