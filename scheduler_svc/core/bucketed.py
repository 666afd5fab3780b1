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
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.paged import MAX_CONSIDERED, PagedAdmission
from scheduler_svc.core.policy import Room, Router
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.sketch import StepSketch
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

    def choose(self, sketch: StepSketch, router: Router) -> None:
        """See `AdmissionPolicy`."""
        grant = sketch.books.grant
        sketch.layout, sketch.advance = grant.layout, Advance.PER_SEQUENCE if grant.granted else Advance.COHORT
        owed, sketch.books.cohort.owed = sketch.books.cohort.owed, []
        if owed and self._run_prompts(sketch, _find(sketch, owed)):
            return
        seqs = {seq.key: seq for seq in (*sketch.books.decoding, *sketch.books.prefilling, *self._newcomers(sketch, router))}
        if seqs:
            self._decide(sketch, seqs)

    def _decide(self, sketch: StepSketch, seqs: dict[int, Sequence]) -> None:
        """Sorts the candidates into buckets and runs one; the others have waited once more."""
        cohort = sketch.books.cohort
        rows = [self._candidate(sketch, seq) for seq in seqs.values()]
        ragged_len = ragged_bucket_len(rows, grant=sketch.books.grant)
        buckets: dict[BucketKey, list[Candidate]] = defaultdict(list)
        for row in rows:
            buckets[bucket_key_of(row, ragged_len=ragged_len)].append(row)
        running = seqs.keys() & set(cohort.running) & sketch.books.running.keys()
        discrete = not running or (len(running) == len(rows) and not len(sketch.queue))
        floor = 0 if sketch.books.grant.buckets_by_cache_length() else self._prefill_floor
        chosen = self._that_fit(sketch, buckets[choose_bucket(buckets, discrete=discrete, prefill_floor=floor)])
        for row in rows:
            seqs[row.key].urgency += 1
        for row in chosen:
            seqs[row.key].urgency = 0
        sketch.num_offered, sketch.num_buckets, sketch.num_chosen = len(rows), len(buckets), len(chosen)
        completions = [seqs[row.key] for row in chosen if not row.is_prompt]
        prompts = [seqs[row.key] for row in chosen if row.is_prompt]
        cohort.running = [row.key for row in chosen]
        if not completions:
            self._run_prompts(sketch, prompts)
            return
        self._run_completions(sketch, completions)
        cohort.owed = [seq.key for seq in prompts]

    def _that_fit(self, sketch: StepSketch, rows: list[Candidate]) -> list[Candidate]:
        """A ragged cohort of a dense layout is as wide as its longest row: those that find no room beside the others wait."""
        grant, info = sketch.books.grant, sketch.books.info
        if grant.buckets_by_cache_length() or grant.layout is Layout.PAGED or rows[0].is_prompt:
            return rows
        return rows_side_by_side(rows, num_columns=info.num_blocks * info.block_size)

    def _candidate(self, sketch: StepSketch, seq: Sequence) -> Candidate:
        is_prompt = seq.state is not State.RUNNING or sketch.books.cols.upper_of(seq.slot) < seq.num_known
        reported = None if is_prompt else sketch.books.cols.confirmed_of(seq.slot)
        return Candidate(
            key=seq.key,
            length=cache_bucket_len(reported, num_tokens=len(seq.tokens)),
            num_tokens=len(seq.tokens),
            is_prompt=is_prompt,
            offset=start_of(seq, sketch, policy=self) if is_prompt else 0,
            urgency=seq.urgency,
        )

    def _newcomers(self, sketch: StepSketch, router: Router) -> list[Sequence]:
        """Waiting sequences that could all enter now, in queue order."""
        books, found = sketch.books, list[Sequence]()
        if books.draining:
            return found
        room = self.room(books)
        for seq in islice(sketch.queue, MAX_CONSIDERED):
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

    def _run_completions(self, sketch: StepSketch, seqs: list[Sequence]) -> None:
        cohort, every_step = sketch.books.cohort, sketch.books.grant.assembles_every_step()
        rows = decode_rows(sketch, seqs)
        if len(rows):
            sketch.cache_op = decode_op(sketch.books.grant.layout, changed=rows.keys != cohort.assembled, every_step=every_step)
            cohort.assembled = list(rows.keys)

    def _run_prompts(self, sketch: StepSketch, seqs: list[Sequence]) -> bool:
        """Whether any could run."""
        offset = prompt_rows(sketch, seqs, policy=self)
        if sketch.prefills:
            sketch.cache_op = prompt_op(sketch.books.grant.layout, offset=offset)
            sketch.books.cohort.assembled = []
        return bool(sketch.prefills)


def _find(sketch: StepSketch, keys: list[int]) -> list[Sequence]:
    """Those of `keys` that still wait to be fed here, in order."""
    wanted = set(keys)
    here = {seq.key: seq for seq in (*sketch.books.prefilling, *sketch.queue) if seq.key in wanted}
    return [here[key] for key in keys if key in here]
