"""Applies a checked result: tokens to sequences, lengths to columns, ends and errors to the books, news to clients."""

from itertools import accumulate

from scheduler_svc.core.check import RowNews, plain_ints
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.news import News
from scheduler_svc.core.residency import end, taint_readers, take_full_windows
from scheduler_svc.core.rows import PlanInFlight, RowMap
from scheduler_svc.core.sequence import LIVE, Sequence, State
from scheduler_svc.core.types import FinishReason, Outputs, StepResult


class ResultApplier:
    """Applies results to one executor's books.

    Attributes:
        ended: keys that ended with this result; the caller forgets them.
    """

    def __init__(self, books: ExecutorBooks) -> None:
        self._books = books
        self.ended: list[int] = []

    def apply(self, flight: PlanInFlight, result: StepResult, news: RowNews) -> Outputs:
        """News of this result. The caller settles leaving sequences afterwards."""
        out = self._apply_decodes(flight.rows, result, news) if news.decoded.rows else Outputs()
        return self._apply_others(News(out), flight, result, news) if news.others else out

    def _apply_decodes(self, rows: RowMap, result: StepResult, news: RowNews) -> Outputs:
        """Rows that are looked at as columns: all at once, then only those that filled a window or ended."""
        cols, (numbers, slots, lengths, token_ids) = self._books.cols, news.decoded
        if filled := cols.full_windows(slots, lengths=lengths):
            seqs = [rows.seqs[numbers[at]] for at in filled]
            take_full_windows(self._books, seqs, lengths=lengths[filled].tolist(), tokens=cols.recent[slots[filled]])
        cols.decoded(slots, lengths=lengths, token_ids=token_ids)
        out = Outputs(keys=rows.keys if len(numbers) == len(rows) else [rows.keys[row] for row in numbers], token_ids=token_ids)
        if result.logprobs:
            out.logprobs = {entry: result.logprobs[row] for entry, row in enumerate(numbers) if row in result.logprobs}
        if news.finished:
            out.finished = [(entry, news.finished[row]) for entry, row in enumerate(numbers) if row in news.finished]
        for entry, _ in out.finished:
            self._end(rows.seqs[numbers[entry]])
        return out

    def _apply_others(self, out: News, flight: PlanInFlight, result: StepResult, news: RowNews) -> Outputs:
        token_ids, ends = plain_ints(news.token_ids), None if news.emitted is None else list(accumulate(news.emitted))
        for row in news.others:
            seq, end = flight.rows.seqs[row], row + 1 if ends is None else ends[row]
            tokens = token_ids[end - (1 if news.emitted is None else news.emitted[row]) : end]
            if row in news.errors or row in news.skipped:
                self._apply_not_run(out, row, seq, news)
            elif seq.state in LIVE:
                self._apply_live(out, row, seq, tokens=tokens, news=news, result=result, flight=flight)
            elif seq.state is State.WITHDRAWN:
                self._confirm(flight, row, seq, num_tokens=len(tokens), news=news)
        return out.outputs()

    def _apply_not_run(self, out: News, row: int, seq: Sequence, news: RowNews) -> None:
        if row in news.errors and seq.state in LIVE:
            out.fail(out.entry(seq.key), FinishReason.ERROR, *news.errors[row])
            self._end(seq)
        elif seq.state is State.WITHDRAWN:
            taint_readers(self._books, seq)

    def _apply_live(
        self, out: News, row: int, seq: Sequence, *, tokens: list[int], news: RowNews, result: StepResult, flight: PlanInFlight
    ) -> None:
        seq.tokens.extend(tokens)
        before = self._books.cols.confirmed_of(flight.rows.slots[row])
        length = self._confirm(flight, row, seq, num_tokens=len(tokens), news=news)
        if flight.rows.drafts is not None and row < flight.rows.num_decodes:
            self._settle_drafts(flight.rows, row, seq, kept=length - before, num_tokens=len(tokens), news=news)
        prompt_logprobs = result.prompt_logprobs.get(row)
        if prompt_logprobs is not None:
            seq.num_prompt_logprobs_done = max(seq.num_prompt_logprobs_done, min(seq.num_prompt - 1, length))
        reason = news.finished.get(row)
        if tokens or reason is not None or not seq.started or prompt_logprobs is not None:
            entry = out.entry(seq.key, tokens=tokens)
            out.attach(entry, logprobs=result.logprobs.get(row), prompt_logprobs=prompt_logprobs)
            if not seq.started:
                seq.started = True
                out.start(entry, seq.num_cached_tokens)
            if reason is not None:
                out.finish(entry, reason)
                self._end(seq)

    def _settle_drafts(self, rows: RowMap, row: int, seq: Sequence, *, kept: int, num_tokens: int, news: RowNews) -> None:
        """What the row accepted is known: plans to come begin behind what it keeps, and drafts as far as that promises."""
        books = self._books
        books.retract(seq, rows.tail_of(row) + rows.drafts_of(row) - kept)
        if books.drafting is not None and news.drafted:
            books.drafting.verified(seq.slot, num_drafted=news.drafted[row], num_accepted=num_tokens - 1)

    def _confirm(self, flight: PlanInFlight, row: int, seq: Sequence, *, num_tokens: int, news: RowNews) -> int:
        """The row ran: its new length counts, and prefix blocks that it filled are valid for good. Returns the length."""
        books, rows = self._books, flight.rows
        slot = rows.slots[row]
        if row < rows.num_decodes:
            length = books.cols.confirmed_of(slot) + news.kept_of(num_tokens)
            books.cols.confirm(slot, length=length)
            return length
        prefill = rows.prefills[row - rows.num_decodes]
        length = prefill.start + prefill.num_tokens
        books.cols.confirm(slot, length=length)
        size = books.kv.block_size
        for block in seq.blocks[prefill.start // size : length // size]:
            books.kv.confirm(block, owner=seq.key)
        return length

    def _end(self, seq: Sequence) -> None:
        end(self._books, seq)
        self.ended.append(seq.key)
