"""Does a result agree with the books? Looked at in full before anything of it is applied."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_svc.core.errors import ResultMismatch
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.rows import PlanInFlight
from scheduler_svc.core.sequence import LIVE, Sequence, State
from scheduler_svc.core.types import FinishReason, StepResult

I64 = NDArray[np.int64]


class DecodedRows(NamedTuple):
    """Decode rows in which nothing calls for a look at each: live, and each emitted exactly one token.

    Attributes:
        rows: their numbers, rising.
        slots, lengths: i64, in their order; `slots` is the RowMap's own array when these are all of its decode rows.
        token_ids: one by each.
    """

    rows: Seq[int]
    slots: I64
    lengths: I64
    token_ids: Seq[int]


@dataclass(slots=True)
class RowNews:
    """A result in the plan's row numbering.

    Attributes:
        emitted: tokens per row, or None = exactly 1 by every row. token_ids: flattened, in the column that they came in.
        drafted: drafts verified per row, or None = none by any.
        kept: tokens that every decode row keeps, where all move by the slowest; None = each as many as it emitted.
        lengths: i64 [R]. finished, errors: by row. skipped: rows.
        decoded: rows that are looked at as columns. others: all the others, rising.
    """

    emitted: list[int] | None
    token_ids: Seq[int]
    lengths: I64
    finished: dict[int, FinishReason]
    errors: dict[int, tuple[str, str]]
    skipped: set[int]
    decoded: DecodedRows
    others: list[int]
    drafted: list[int] | None = None
    kept: int | None = None

    def kept_of(self, num_tokens: int) -> int:
        """What a decode row keeps that emitted so many tokens."""
        return num_tokens if self.kept is None else self.kept


NOBODY: Final = DecodedRows((), np.zeros(0, np.int64), np.zeros(0, np.int64), ())


def _first(column: Seq[int], count: int) -> Seq[int]:
    """The leading entries; the column itself, not a copy, when these are all."""
    return column if len(column) == count else column[:count]


def plain_ints(column: Seq[int]) -> list[int]:
    """A column as Python integers, whatever array it came in."""
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


class ResultCheck:
    """Checks one result; every complaint is a `ResultMismatch` that names row and field."""

    def __init__(self, books: ExecutorBooks, flight: PlanInFlight, result: StepResult) -> None:
        self._books = books
        self._flight = flight
        self._rows = flight.rows
        self._result = result

    def read(self) -> RowNews:
        """The result as `RowNews`. Follows the executor's block tables; nothing else changes."""
        result, rows = self._result, self._rows
        emitted: list[int] | None = plain_ints(result.num_emitted) or None
        lengths = np.asarray(result.lengths, np.int64)
        news = RowNews(
            emitted=None if emitted is None or emitted.count(1) == len(emitted) else emitted,
            token_ids=result.token_ids,
            lengths=lengths,
            finished=dict(result.finished),
            errors={row: (code, message) for row, code, message in result.errors},
            skipped=set(result.skipped),
            decoded=NOBODY,
            others=[],
            drafted=plain_ints(result.num_drafted) or None,
        )
        self._check_shapes(news, counts=emitted)
        if rows.tails is not None:
            news.kept = self._slowest(news, rows.tails)
        self._split(news)
        if news.decoded.rows:
            self._check_decodes(news)
        for row in news.others:
            self._check_row(news, row, rows.seqs[row])
        self._check_blocks(news)
        return news

    def _split(self, news: RowNews) -> None:
        """Fills in which decode rows are columns."""
        rows, count = self._rows, self._rows.num_decodes
        odd = self._odd_decodes(news)
        news.others = [*odd, *range(count, len(rows))] if odd or rows.prefills else []
        if not odd:
            news.decoded = DecodedRows(range(count), rows.decode_slots, news.lengths[:count], _first(news.token_ids, count))
            return
        regular = np.delete(np.arange(count), odd)
        places = regular if news.emitted is None else np.cumsum(news.emitted)[regular] - 1
        token_ids = plain_ints(news.token_ids)
        ours = [token_ids[place] for place in places.tolist()]
        news.decoded = DecodedRows(regular.tolist(), rows.decode_slots[regular], news.lengths[regular], ours)

    def _slowest(self, news: RowNews, tails: list[int]) -> int:
        """What the decode row keeps that keeps the fewest of those that ran; 0 when none did."""
        counts = news.emitted or [1] * len(self._rows)
        ran = (row for row in range(len(tails)) if row not in news.errors and row not in news.skipped)
        return min((tails[row] - 1 + max(counts[row], 1) for row in ran), default=0)

    def _odd_decodes(self, news: RowNews) -> list[int]:
        """Decode rows that need a look at each: of sequences that have ended or leave, skipped, failed, with drafts or no token."""
        seqs, count, emitted, drafts = self._rows.seqs, self._rows.num_decodes, news.emitted, self._rows.drafts
        if self._rows.tails is not None:
            return list(range(count))
        silent = [] if emitted is None or emitted[:count].count(1) == count else [r for r in range(count) if emitted[r] != 1]
        if drafts is not None:
            silent = sorted({*silent, *(row for row in range(count) if drafts[row])})
        if self._result.step_id > self._books.irregular_until and not news.errors and not news.skipped:
            return silent
        gone = [row for row in range(count) if seqs[row].state not in LIVE]
        return sorted({*silent, *gone, *(row for row in (*news.errors, *news.skipped) if row < count)})

    def _fail(self, what: str) -> ResultMismatch:
        return ResultMismatch(what, executor_id=self._books.executor_id, step_id=self._result.step_id)

    def _check_shapes(self, news: RowNews, *, counts: list[int] | None) -> None:
        num_rows = len(self._rows)
        if counts is not None and len(counts) != num_rows:
            raise self._fail(f"num_emitted has {len(counts)} entries, the plan has {num_rows} rows")
        if len(news.lengths) != num_rows:
            raise self._fail(f"lengths has {len(news.lengths)} entries, the plan has {num_rows} rows")
        total = num_rows if news.emitted is None else sum(news.emitted)
        if news.emitted is not None and min(news.emitted, default=0) < 0:
            raise self._fail("num_emitted is negative")
        if news.drafted is not None and len(news.drafted) != num_rows:
            raise self._fail(f"num_drafted has {len(news.drafted)} entries, the plan has {num_rows} rows")
        if len(news.token_ids) != total:
            raise self._fail(f"token_ids has {len(news.token_ids)} entries, num_emitted says {total}")
        if not (news.finished or news.errors or news.skipped or self._result.logprobs or self._result.prompt_logprobs):
            return
        named = (*news.finished, *news.errors, *news.skipped, *self._result.logprobs, *self._result.prompt_logprobs)
        if named and not 0 <= min(named) <= max(named) < num_rows:
            raise self._fail(f"a row is named that the plan, with {num_rows} rows, does not have")
        if len(news.finished) + len(news.errors) + len(news.skipped) != len(
            news.finished.keys() | news.errors.keys() | news.skipped
        ):
            raise self._fail("a row is reported in more than one of finished, errors and skipped")

    def _check_decodes(self, news: RowNews) -> None:
        cols, (rows, slots, lengths, _) = self._books.cols, news.decoded
        expected = cols.expected(slots)
        if lengths.tobytes() != expected.tobytes():  # both i64; a quarter of what comparing arrays costs
            wrong = int((lengths != expected).argmax())
            raise self._fail(f"row {rows[wrong]} has length {int(lengths[wrong])}, expected {int(expected[wrong])}")
        for last in cols.at_limit(slots, lengths=lengths):
            if rows[last] not in news.finished:
                raise self._fail(f"row {rows[last]} emitted its last token and did not finish")

    def _check_row(self, news: RowNews, row: int, seq: Sequence) -> None:
        count = 1 if news.emitted is None else news.emitted[row]
        if row in news.skipped:
            if seq.state in LIVE:
                raise self._fail(f"row {row} was skipped although its sequence is live")
            if count:
                raise self._fail(f"row {row} was skipped and emitted {count} tokens")
            return
        if seq.state is State.ENDED:
            raise self._fail(f"row {row} ran although its sequence had ended")
        if row in news.errors:
            if count:
                raise self._fail(f"row {row} failed and emitted {count} tokens")
            return
        self._check_ran(news, row, seq, count=count)

    def _check_ran(self, news: RowNews, row: int, seq: Sequence, *, count: int) -> None:
        rows = self._rows
        prefill = rows.prefills[row - rows.num_decodes] if row >= rows.num_decodes else None
        before = prefill.start if prefill else self._books.cols.confirmed_of(rows.slots[row])
        samples = prefill is None or prefill.is_last
        drafts, drafted = rows.drafts_of(row), news.drafted[row] if news.drafted else 0
        if prefill:
            kept = fed = prefill.num_tokens
        else:
            kept, fed = news.kept_of(max(count, 1)), rows.tail_of(row) - 1 + max(count, 1)
        if not 0 <= drafted <= drafts:
            raise self._fail(f"row {row} verified {drafted} drafts, its plan names {drafts}")
        if count > (1 + drafted if samples and seq.request.max_tokens else 0):
            raise self._fail(f"row {row} emitted {count} tokens, too many")
        if seq.state not in LIVE:
            return
        if int(news.lengths[row]) != before + kept:
            raise self._fail(f"row {row} has length {int(news.lengths[row])}, expected {before + kept}")
        finished = row in news.finished
        if finished and not samples:
            raise self._fail(f"row {row} finished in the middle of its prefill")
        if samples and not finished and (not count or before + fed >= int(self._books.cols.limit[rows.slots[row]])):
            raise self._fail(f"row {row} emitted {count} tokens, may emit no more, and did not finish")

    def _check_blocks(self, news: RowNews) -> None:
        try:
            expected = self._books.tables.follow(self._flight, skipped=news.skipped, ended=(*news.finished, *news.errors))
        except KeyError as slot:
            raise self._fail(f"slot {slot} ran although its sequence had ended there") from slot
        if self._result.num_blocks_in_use != expected:
            raise self._fail(f"num_blocks_in_use is {self._result.num_blocks_in_use}, expected {expected}")
