"""Applies a checked result: tokens to sequences, lengths to columns, ends and errors to the books, news to clients."""

from scheduler_svc.core.check import RowNews, plain_ints
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.news import News
from scheduler_svc.core.residency import end, publish_scheduled, taint_readers, take_full_windows
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
        rows = flight.rows
        if not news.plain:
            return self._apply_rows(News(), flight, result, news, first=0)
        out = self._apply_decodes(rows, result, news) if rows.num_decodes else Outputs()
        return self._apply_rows(News(out), flight, result, news, first=rows.num_decodes) if rows.prefills else out

    def _apply_decodes(self, rows: RowMap, result: StepResult, news: RowNews) -> Outputs:
        """Every decode row is live and emitted one token: columns at once, then only what filled a window or ended."""
        cols, slots, count = self._books.cols, rows.decode_slots, rows.num_decodes
        lengths, token_ids = news.lengths[:count], news.token_ids[:count]
        if filled := cols.full_windows(slots, lengths=lengths):
            self._take_full_windows(rows, news, filled=filled)
        cols.decoded(slots, lengths=lengths, token_ids=token_ids)
        out = Outputs(keys=rows.keys if not rows.prefills else rows.keys[:count], token_ids=token_ids)
        out.logprobs = {row: value for row, value in result.logprobs.items() if row < count}
        for row in sorted(row for row in news.finished if row < count):
            out.finished.append((row, news.finished[row]))
            self._end(rows.seqs[row])
        return out

    def _take_full_windows(self, rows: RowMap, news: RowNews, *, filled: list[int]) -> None:
        """Tokens of the windows that rows `filled` complete leave the columns before this step's own come in."""
        seqs, lengths = [rows.seqs[row] for row in filled], news.lengths[filled].tolist()
        take_full_windows(self._books, seqs, lengths=lengths, tokens=self._books.cols.recent[rows.decode_slots[filled]])

    def _apply_rows(self, out: News, flight: PlanInFlight, result: StepResult, news: RowNews, *, first: int) -> Outputs:
        """Rows from `first` on, one by one; those before it emitted one token each."""
        token_ids, offset = plain_ints(news.token_ids[first:]), 0
        for row, seq in enumerate(flight.rows.seqs[first:], first):
            count = 1 if news.emitted is None else news.emitted[row]
            tokens = token_ids[offset : offset + count]
            offset += count
            if row in news.errors or row in news.skipped:
                self._apply_not_run(out, row, seq, news)
            elif seq.state in LIVE:
                self._apply_live(out, row, seq, tokens=tokens, news=news, result=result, flight=flight)
            elif seq.state is State.WITHDRAWN:
                self._confirm(flight, row, seq)
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
        length = self._confirm(flight, row, seq)
        if self._books.caching and row < flight.rows.num_decodes:
            publish_scheduled(self._books, seq, num_tokens=length, confirmed=True)
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

    def _confirm(self, flight: PlanInFlight, row: int, seq: Sequence) -> int:
        """The row ran: its new length counts, and prefix blocks that it filled are valid for good. Returns the length."""
        books, rows = self._books, flight.rows
        slot = rows.slots[row]
        if row < rows.num_decodes:
            length = books.cols.confirmed_of(slot) + 1
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
