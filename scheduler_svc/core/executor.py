"""One executor's books: its memory, its slots, who is resident, which plans are in flight."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from scheduler_svc.core.cohort import Cohort
from scheduler_svc.core.columns import SlotColumns
from scheduler_svc.core.drafting import Drafting
from scheduler_svc.core.grant import drafts_here, grant_for, grant_id_of, rows_move_together
from scheduler_svc.core.growing import GrowingChains
from scheduler_svc.core.kv import KvCache
from scheduler_svc.core.prefix import PrefixChain, identity
from scheduler_svc.core.rows import I64, PlanInFlight, RowMap
from scheduler_svc.core.sequence import Sequence, by_key
from scheduler_svc.core.tables import ExecutorTables
from scheduler_svc.core.types import ExecutorInfo, Limits


class ExecutorBooks:
    """What the scheduler knows of one executor; all of it is forgotten when the executor is lost.

    Attributes:
        info: its handshake. draining: nothing new is placed here.
        grant: whether rows of different lengths may share a step here, decided with the handshake.
        cohort: what the bucketed and the ragged rule remember.
        max_rows, budget: most residents, and most tokens in one step; a resident can always decode, so max_rows <= budget.
        kv: its blocks. tables: its block tables as of the last result.
        cols: lengths per slot.
        caching: full blocks are offered to later sequences.
        growing: residents that decode, by the last block that they offered.
        running: residents in state RUNNING, by key. prefilling, decoding: those with rows to schedule, in key order. retired:
            residents with every row scheduled that they may have. Each of `running` is in exactly one of the three.
        leaving: residents that only wait for plans in flight (PREEMPTING, DISCARDING, WITHDRAWN), by key.
        free_slots: heap, lowest first. pending_freed, pending_aborted: slots that the next plan gives back.
        releasing: (step, slot), a slot that the plan `step` gave back; free once it has returned.
        in_flight: plans sent, oldest first.
        irregular_until: rows of plans up to this step may belong to sequences that have ended or leave.
        drafting: how far drafts run; None = nobody drafts here.
        moves_together: rows that decode all move by the slowest: as set, or because the executor was not granted more. Then one
            plan is in flight, since the next needs to know what each row has left to feed.
        decode_room: steps for which no decode row can reach its limit, at least; never too many.
        last_keys, last_all_decode: rows of the last plan that had rows, for "repeat".
    """

    def __init__(self, info: ExecutorInfo, limits: Limits, *, fingerprint: Callable[[bytes], bytes] = identity) -> None:
        self.info = info
        self.grant = grant_for(info, limits=limits)
        self.cohort = Cohort()
        self.draining = False
        self.budget = max(1, min(limits.max_num_batched_tokens, info.max_num_batched_tokens))
        self.max_rows = max(1, min(limits.max_num_seqs, info.max_num_seqs, self.budget))
        self.kv = KvCache(num_blocks=info.num_blocks, block_size=info.block_size, fingerprint=fingerprint)
        self.tables = ExecutorTables(info.num_blocks)
        self.cols = SlotColumns(info.max_num_seqs, block_size=info.block_size)
        self.drafting: Drafting | None = None
        if drafts_here(info, limits=limits):
            adaptive = limits.drafts == "adaptive"
            self.drafting = Drafting(depth=info.mtp_depth, num_slots=info.max_num_seqs, adaptive=adaptive)
        self.moves_together = rows_move_together(info, self.grant, limits=limits)
        if self.moves_together:  # a tail is at most one token longer than drafts run, and always fits into a step
            self.max_rows = max(1, min(self.max_rows, self.budget // (info.mtp_depth + 1)))
        self.caching = limits.enable_prefix_caching
        self.growing = GrowingChains()
        self.running: dict[int, Sequence] = {}
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.retired: dict[int, Sequence] = {}
        self.leaving: dict[int, Sequence] = {}
        self.free_slots = list(range(info.max_num_seqs))
        self.pending_freed: list[int] = []
        self.pending_aborted: list[int] = []
        self.releasing: deque[tuple[int, int]] = deque()
        self.in_flight: deque[PlanInFlight] = deque()
        self.next_step = 1
        self.last_result_step = 0
        self.cohort_id = 0
        self.irregular_until = 0
        self.last_keys: list[int] = []
        self.last_all_decode = False
        self.decode_room = 0
        self._decode_map: RowMap | None = None

    @property
    def executor_id(self) -> int:
        """Given by the shell."""
        return self.info.executor_id

    @property
    def grant_id(self) -> int:
        """The admission grant decided at the handshake, one per executor."""
        return grant_id_of(self.info.executor_id)

    @property
    def num_resident(self) -> int:
        """Sequences that have a slot."""
        return len(self.running) + len(self.leaving)

    def can_ever_hold(self, seq: Sequence) -> bool:
        """Whether prompt and max_tokens fit this executor when it is empty."""
        return seq.max_total <= self.info.max_model_len and self.kv.blocks_for(seq.max_length) <= self.info.num_blocks

    def prefix(self, seq: Sequence, num_blocks: int) -> PrefixChain:
        """Names of at least the first `num_blocks` blocks of `seq`, as this executor's index knows them."""
        return seq.prefix(num_blocks, model_digest=self.info.model_digest, block_size=self.info.block_size)

    def may_know_start(self, seq: Sequence) -> bool:
        """Whether somebody has computed the first block of `seq`, which must be full, as far as one can tell without naming any."""
        chain = self.prefix(seq, 1)
        return chain.digests[0] in self.kv.index or self.growing.may_name(chain.root, step=self.last_result_step)

    def is_in_flight(self, seq: Sequence) -> bool:
        """Whether a plan that has not returned has a row of it."""
        return self.cols.last_step_of(seq.slot) > self.last_result_step

    def decode_rows(self) -> RowMap:
        """The rows of `decoding`; one shared object as long as membership stays."""
        if self._decode_map is None:
            self._decode_map = RowMap(self.decoding, [])
        return self._decode_map

    def finish_prefill(self, seq: Sequence) -> None:
        """Its known tokens are all scheduled; it decodes from the next plan on, unless that was its last row."""
        self.prefilling.remove(seq)
        if self.cols.upper_of(seq.slot) >= self.cols.limit[seq.slot]:
            self.retired[seq.key] = seq
        else:
            self.start_decoding(seq)

    def start_decoding(self, seq: Sequence) -> None:
        """It has decode rows to schedule."""
        insort(self.decoding, seq, key=by_key)
        self.watch_growth(seq)
        self._decode_map = None
        self.decode_room = 0

    def watch_growth(self, seq: Sequence) -> None:
        """It fills blocks from now on, which others may look for."""
        if self.caching:
            self.growing.put(seq, self.prefix(seq, seq.num_published).parent(seq.num_published))

    def start_prefilling(self, seq: Sequence) -> None:
        """It has known tokens to schedule."""
        insort(self.prefilling, seq, key=by_key)

    def stop_scheduling(self, seq: Sequence) -> None:
        """No further rows of it."""
        self.retired.pop(seq.key, None)
        for group in (self.decoding, self.prefilling):
            if seq in group:
                group.remove(seq)
                self._decode_map = None

    def retire(self, seqs: list[Sequence]) -> None:
        """Every row that these decoding sequences may have is scheduled; only their results are awaited."""
        keys = {seq.request.key for seq in seqs}
        self.decoding = [seq for seq in self.decoding if seq.request.key not in keys]
        self.retired.update((seq.request.key, seq) for seq in seqs)
        self._decode_map = None

    def retire_done(self, rows: RowMap, *, left: I64) -> None:
        """Rows with nothing `left` to feed had their last; the next look is due when the first of the others may have had its."""
        if done := (left <= 0).nonzero()[0].tolist():
            self.retire([rows.seqs[row] for row in done])
        elif len(left) == len(self.decoding):  # a row that was left out, short of blocks, may be nearer to its end
            self.decode_room = int(left.min())

    def retract(self, seq: Sequence, num_tokens: int) -> None:
        """Of the tokens that a plan was to feed for it, so many do not count: it may have rows to schedule again."""
        if num_tokens:
            self.cols.retract(seq.slot, num_tokens)
            if self.retired.pop(seq.key, None) is not None:
                self.start_decoding(seq)

    def take_slot(self, seq: Sequence) -> None:
        """The lowest free slot, with fresh columns."""
        slot = heappop(self.free_slots)
        seq.slot = slot
        seq.executor_id = self.info.executor_id
        cols = self.cols
        capacity, limit = len(seq.blocks) * self.kv.block_size, min(seq.max_length, self.info.max_model_len)
        cols.enter(slot, length=seq.num_cached_tokens, capacity=capacity, limit=limit)
        seq.cols = cols
        if self.drafting is not None:
            self.drafting.enter(slot)
        self.running[seq.key] = seq
        self.start_prefilling(seq)

    def append_blocks(self, seq: Sequence, count: int) -> list[int]:
        """`count` more blocks behind its table; the caller checked that they exist."""
        blocks = self.kv.allocate(count)
        seq.blocks += blocks
        self.cols.capacity[seq.slot] = len(seq.blocks) * self.kv.block_size
        return blocks

    def give_slots_back(self) -> None:
        """Slots whose freeing plan has returned can be used again."""
        while self.releasing and self.releasing[0][0] <= self.last_result_step:
            heappush(self.free_slots, self.releasing.popleft()[1])
