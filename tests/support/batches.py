"""Drives a backend without the executor's shell: sequences with their own blocks, ragged batches of any mixture of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from executor_svc.backends.base import Backend
from executor_svc.plan import Batch, SampleColumns, Sampled, Sampling

BLOCK_SIZE = 16


@dataclass(slots=True)
class Seq:
    """A sequence: tokens known, tokens computed, blocks held."""

    tokens: list[int]
    num_prompt: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


class Driver:
    """Hands out blocks (in a scattered order, so that tables matter) and runs batches."""

    def __init__(self, backend: Backend, *, seed: int = 1) -> None:
        self.backend = backend
        self.free = np.random.default_rng(seed).permutation(backend.info.num_blocks).tolist()

    def add(self, prompt: Sequence[int], *, shared: Seq | None = None, cached: int = 0, sampling: Sampling | None = None) -> Seq:
        """A new sequence; its first `cached` tokens (whole blocks) are read from the blocks of `shared`: a prefix hit."""
        blocks = list(shared.blocks[: cached // BLOCK_SIZE]) if shared else []
        return Seq(list(prompt), len(prompt), cached, blocks, sampling or Sampling())

    def release(self, *sequences: Seq) -> None:
        """Gives the blocks back; sequences that share some must be released by one of them."""
        self.free += sorted({block for sequence in sequences for block in sequence.blocks})

    def run(self, rows: Sequence[tuple[Seq, int]], **options: object) -> Sampled:
        """One step: feeds so many pending tokens of each sequence; rows whose pending tokens are all fed get a token."""
        batch = self.batch(rows, **options)
        sampled = self.backend.forward(batch)
        for sequence, count in rows:
            sequence.computed += count
        for index, token in zip(batch.sample.rows.tolist(), sampled.token_ids.tolist(), strict=True):
            rows[index][0].tokens.append(token)
        return sampled

    def batch(self, rows: Sequence[tuple[Seq, int]], *, want_digests: bool = False) -> Batch:
        """The batch of `run`; takes the blocks that it needs."""
        for sequence, count in rows:
            while len(sequence.blocks) * BLOCK_SIZE < sequence.computed + count:
                sequence.blocks.append(self.free.pop())
        width = max(len(sequence.blocks) for sequence, _ in rows)
        counts = [count for _, count in rows]
        scored = [(r, s, s.tokens[s.computed + 1 : min(s.computed + n, s.num_prompt - 1) + 1]) for r, (s, n) in enumerate(rows)]
        scored = [(r, s, targets) for r, s, targets in scored if s.sampling.prompt_logprobs and targets]
        return Batch(
            token_ids=_i32([t for s, n in rows for t in s.tokens[s.computed : s.computed + n]]),
            positions=_i32([p for s, n in rows for p in range(s.computed, s.computed + n)]),
            query_start=_starts(counts),
            context_len=_i32([s.computed + n for s, n in rows]),
            block_tables=_i32([s.blocks + [-1] * (width - len(s.blocks)) for s, _ in rows]),
            sample=columns_of([(r, s) for r, (s, n) in enumerate(rows) if n == s.pending]),
            prompt_logprob_rows=_i32([r for r, _, _ in scored]),
            prompt_num_top=_i32([s.sampling.top_logprobs for _, s, _ in scored]),
            copy_src=_i32([]),
            copy_dst=_i32([]),
            want_digests=want_digests,
            prompt_target_start=_starts([len(targets) for _, _, targets in scored]),
            prompt_targets=_i32([t for _, _, targets in scored for t in targets]),
        )

    def generate(self, sequences: Sequence[Seq], *, num_tokens: int, chunk: int = 10**9, budget: int = 10**9) -> None:
        """Runs until each sequence has so many output tokens, prefill chunks and decode rows mixed in one batch."""
        while unfinished := [s for s in sequences if len(s.output) < num_tokens]:
            rows, left = [], budget
            for sequence in unfinished:
                count = min(sequence.pending, chunk, left)
                if count:
                    rows.append((sequence, count))
                    left -= count
            self.run(rows)


def columns_of(picked: Sequence[tuple[int, Seq]]) -> SampleColumns:
    """Sampling columns of (batch row, sequence) pairs, as the executor's shell gathers them."""
    samplings = [s.sampling for _, s in picked]
    longest = max((len(s.tokens) for _, s in picked), default=0)
    floats = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    return SampleColumns(
        rows=_i32([r for r, _ in picked]),
        slots=_i32(range(len(picked))),
        top_k=_i32([s.top_k for s in samplings]),
        seed=np.array([s.seed for s in samplings], np.uint64),
        output_pos=_i32([len(s.output) for _, s in picked]),
        tokens=_i32([s.tokens + [0] * (longest - len(s.tokens)) for _, s in picked]).reshape(len(picked), longest),
        num_prompt=_i32([s.num_prompt for _, s in picked]),
        num_known=_i32([len(s.tokens) for _, s in picked]),
        ban_end=np.array([len(s.output) < s.sampling.min_tokens for _, s in picked], np.bool_),
        end_start=_starts([len(s.stop_token_ids) for s in samplings]),
        end_ids=_i32([t for s in samplings for t in s.stop_token_ids]),
        bias_start=_starts([len(s.bias_ids) for s in samplings]),
        bias_ids=_i32([t for s in samplings for t in s.bias_ids]),
        bias_values=np.array([v for s in samplings for v in s.bias_values], np.float32),
        want_logprobs=np.array([s.logprobs for s in samplings], np.bool_),
        num_top=_i32([s.top_logprobs for s in samplings]),
        **{name: np.array([getattr(s, name) for s in samplings], np.float32) for name in floats},
    )


def _i32(values):
    return np.array(list(values), np.int32)


def _starts(counts):
    return np.cumsum([0, *counts]).astype(np.int32)
