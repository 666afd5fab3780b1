"""A backend without a model: deterministic tokens, computed from a cache that is written and read back through block tables.

It behaves like a model where the system around it cares. A token depends on every token before it *as read through the row's
block table* (so a wrong block, a stale length or a swapped row shows up as a wrong token), and on the row's seed and output
position when it is sampled; never on batch mates, chunking or prefix hits.

Legend: K blocks, B block size, R rows, W widest table, S rows that sample.
"""

import hashlib
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from executor_svc.backends import fake_tokenizer
from executor_svc.backends.base import BackendInfo, ModelInfo
from executor_svc.backends.fake_drafter import FakeDrafter
from executor_svc.backends.fake_pipeline import fake_pipeline
from executor_svc.config import ExecutorSettings
from executor_svc.drafter import Drafter
from executor_svc.plan import (
    ALIGNED,
    CACHE_IN,
    F32,
    I32,
    PAGED,
    STRIPPED,
    U64,
    Batch,
    Logprobs,
    SampleColumns,
    Sampled,
)
from executor_svc.ragged import RaggedPipeline, RaggedSwitches

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_FORCE: Final = 50.0
"""A logit bias of at least this much is obeyed: the token is chosen, or with a minus sign never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """How the fake behaves; meanings as in `ExecutorSettings`. A token of -1 means none."""

    max_model_len: int = 4096
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    num_blocks: int = 4096
    block_size: int = 16
    model_name: str = "drumline-fake"
    step_ms: float = 0.0
    eos_chance: float = 0.0
    alphabet: str = "words"
    fail_token: int = -1
    crash_token: int = -1
    ragged_granted: bool = True
    declared_drafter: str = "none"
    drafter: str = "none"
    draft_luck: float = 0.7
    mtp_depth: int = 3
    switches: RaggedSwitches = field(default_factory=RaggedSwitches)


class FakeBackend:
    """See the module. `steps` counts forwards, for tests."""

    def __init__(self, options: FakeOptions) -> None:
        self._options = options
        vocabulary = fake_tokenizer.build()
        self._alphabet: I32 = np.array(vocabulary.word_ids if options.alphabet == "words" else vocabulary.byte_ids, np.int32)
        self._eos: Final = len(fake_tokenizer.SPECIALS) - 1
        self._cache: U64 = np.zeros((options.num_blocks, options.block_size), np.uint64)
        self._sums: U64 = np.zeros(options.num_blocks, np.uint64)
        self.steps = 0
        made_of = f"{options.alphabet} {options.eos_chance}".encode() + vocabulary.tokenizer_json
        self._model = ModelInfo(
            model_digest=hashlib.sha256(made_of).hexdigest(),
            model_name=options.model_name,
            tokenizer_json=vocabulary.tokenizer_json,
            chat_template=fake_tokenizer.CHAT_TEMPLATE,
            bos_token_id=0,
            add_bos=False,
            eos_token_ids=(self._eos,),
            max_model_len=options.max_model_len,
            vocab_size=vocabulary.size,
        )
        self._pipeline = fake_pipeline(options.declared_drafter, refused=not options.ragged_granted, switches=options.switches)
        declared = self._pipeline.ragged_batch_admission()
        self._info = BackendInfo(
            block_size=options.block_size,
            num_blocks=options.num_blocks,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            device="fake",
            kernels=("fake",),
            precision="fake",
            batch_invariant=True,
            ragged_granted=declared.granted,
            ragged_reason=declared.reason,
            layouts=(PAGED, ALIGNED, STRIPPED),
            drafter=options.drafter,
            mtp_depth=options.mtp_depth if options.drafter != "none" else 0,
        )
        self._drafter = FakeDrafter(self, luck=options.draft_luck) if options.drafter != "none" else None

    @property
    def model(self) -> ModelInfo:
        """A tiny byte-level vocabulary."""
        return self._model

    @property
    def info(self) -> BackendInfo:
        """As asked for in the options."""
        return self._info

    @property
    def pipeline(self) -> RaggedPipeline:
        """See `Backend`."""
        return self._pipeline

    @property
    def drafter(self) -> Drafter | None:
        """See `Backend`."""
        return self._drafter

    def forward(self, batch: Batch) -> Sampled:
        """See `Backend`; takes `step_ms`. Rows live in blocks whatever the layout; what a dense one would put in front is told."""
        started_ns = time.monotonic_ns()
        if (batch.token_ids == self._options.crash_token).any():
            raise RuntimeError("fake_crash_token was fed")
        if self._options.step_ms:
            time.sleep(self._options.step_ms / 1000)
        self.steps += 1
        self._copy_and_write(batch)
        state = self.read(batch.block_tables, context_len=batch.context_len)
        places = state[batch.sample.rows]
        if len(batch.drafts_behind):
            rows, length = batch.sample.rows, batch.positions[batch.sampled_at] + 1
            places = self.read(batch.block_tables[rows], context_len=length)  # few: decode rows and their drafts
        forward_ns = time.monotonic_ns() - started_ns
        sampled = self._sample(batch, state, places)
        sampled.forward_ns = forward_ns
        sampled.sample_ns = time.monotonic_ns() - started_ns - forward_ns
        if batch.cache_op == CACHE_IN:
            own = batch.context_len - np.diff(batch.query_start)
            sampled.lead_pad = (own.max(initial=0) - own).astype(np.int32)
        return sampled

    def reset(self) -> None:
        """Forgets the cache, so that a stale block of an earlier session shows."""
        self._cache[:] = 0
        self._sums[:] = 0

    def close(self) -> None:
        """Nothing to give back."""

    def _copy_and_write(self, batch: Batch) -> None:
        self._cache[batch.copy_dst] = self._cache[batch.copy_src]
        self._sums[batch.copy_dst] = self._sums[batch.copy_src]
        rows = np.repeat(np.arange(len(batch.context_len)), np.diff(batch.query_start))
        blocks = batch.block_tables[rows, batch.positions // np.int32(self._options.block_size)]
        self.write(batch.token_ids, positions=batch.positions, blocks=blocks)

    def write(self, token_ids: I32, *, positions: I32, blocks: I32) -> None:
        """Each token [T] into the cache, at its position, in its block [T]."""
        size = np.int32(self._options.block_size)
        self._cache[blocks, positions % size] = mix(token_ids.astype(np.uint64) * _GOLDEN + positions.astype(np.uint64))
        self._sums[blocks] = self._cache[blocks].sum(axis=1)

    def read(self, block_tables: I32, *, context_len: I32) -> U64:
        """One number per row [R], made of everything in its context: whole blocks by their sums, the last one slot by slot."""
        size, width = self._options.block_size, block_tables.shape[1]
        last = (context_len - 1) // size
        whole = np.arange(width) < last[:, None]
        sums = np.where(whole, self._sums[block_tables], np.uint64(0))
        tail = self._cache[block_tables[np.arange(len(last)), last]]
        filled = np.arange(size) < (context_len - last * size)[:, None]
        order = mix(np.arange(width, dtype=np.uint64)) | np.uint64(1)
        return mix((sums * order).sum(axis=1) + np.where(filled, tail, np.uint64(0)).sum(axis=1) * order[last])

    def _sample(self, batch: Batch, state: U64, places: U64) -> Sampled:
        sample = batch.sample
        luck, token_ids = self.choose(places, sample)
        return Sampled(
            token_ids=token_ids,
            row_errors=self._failures(batch),
            logprobs={
                int(s): self._score(luck[s], int(token_ids[s]), int(sample.num_top[s]))
                for s in np.flatnonzero(sample.want_logprobs)
            },
            prompt_logprobs={int(row): self._score_prompt(batch, place) for place, row in enumerate(batch.prompt_logprob_rows)},
            digest=state if batch.want_digests else np.zeros(0, np.uint64),
            place_digest=places if batch.want_digests and len(batch.drafts_behind) else np.zeros(0, np.uint64),
        )

    def choose(self, state: U64, sample: SampleColumns) -> tuple[U64, I32]:
        """Luck and token at each place [S], whose context is `state`."""
        noise = np.where(
            sample.temperature > 0, mix(sample.seed + mix(sample.output_pos.astype(np.uint64) + _GOLDEN)), np.uint64(0)
        )
        luck = mix(state ^ noise)
        token_ids = self._alphabet[(luck >> np.uint64(20)) % np.uint64(len(self._alphabet))]
        if self._options.eos_chance:
            ends = (luck & np.uint64(0xFFFFF)) < np.uint64(self._options.eos_chance * 2**20)
            token_ids = np.where(ends, np.int32(self._eos), token_ids)
        self._obey(sample, token_ids)
        return luck, token_ids

    def _obey(self, sample: SampleColumns, token_ids: I32) -> None:
        """Forced and forbidden tokens of the few rows that have any."""
        biased = np.flatnonzero(np.diff(sample.bias_start))
        for s in np.union1d(np.flatnonzero(sample.ban_end), biased).tolist():
            chosen = slice(sample.bias_start[s], sample.bias_start[s + 1])
            bias = dict(zip(sample.bias_ids[chosen].tolist(), sample.bias_values[chosen].tolist(), strict=True))
            banned = {token for token, value in bias.items() if value <= -_FORCE}
            if sample.ban_end[s]:
                banned |= set(sample.end_ids[sample.end_start[s] : sample.end_start[s + 1]].tolist())
            forced = [token for token, value in bias.items() if value >= _FORCE and token not in banned]
            token_ids[s] = forced[0] if forced else self._allowed(int(token_ids[s]), banned)

    def _allowed(self, token: int, banned: set[int]) -> int:
        """The token itself, or the next one of the vocabulary that is not banned."""
        size = self._model.vocab_size
        return next((candidate % size for candidate in range(token, token + size) if candidate % size not in banned), token)

    def _failures(self, batch: Batch) -> dict[int, tuple[str, str]]:
        fed = np.flatnonzero(batch.token_ids == self._options.fail_token)
        rows = np.searchsorted(batch.query_start, fed, side="right") - 1
        return {int(row): ("internal", "fake_fail_token was fed") for row in rows}

    def _score(self, luck: np.uint64, token: int, num_top: int) -> Logprobs:
        """Plausible, finite, deterministic values; the chosen token is the most likely one."""
        logprob = -0.05 - float(luck % np.uint64(1000)) / 1000
        others = [candidate % self._model.vocab_size for candidate in range(token, token + num_top)]
        tops: F32 = (logprob - np.arange(num_top, dtype=np.float32)).astype(np.float32)
        return Logprobs(
            np.array([token], np.int32), np.array([logprob], np.float32), np.array([others], np.int32), tops.reshape(1, -1)
        )

    def _score_prompt(self, batch: Batch, place: int) -> Logprobs:
        targets = batch.prompt_targets[batch.prompt_target_start[place] : batch.prompt_target_start[place + 1]]
        first = batch.positions[batch.query_start[batch.prompt_logprob_rows[place]]]
        num_top = int(batch.prompt_num_top[place])
        luck = mix(targets.astype(np.uint64) * _GOLDEN + np.arange(first, first + len(targets), dtype=np.uint64))
        scores = [self._score(value, int(token), num_top) for value, token in zip(luck, targets, strict=True)]
        return Logprobs(
            targets,
            np.concatenate([score.logprobs for score in scores]),
            np.concatenate([score.top_token_ids for score in scores]),
            np.concatenate([score.top_logprobs for score in scores]),
        )


def mix(value: U64) -> U64:
    """Scrambles 64-bit integers so that every input bit touches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    mixed: U64 = value ^ (value >> np.uint64(31))
    return mixed


def options_of(told: ExecutorSettings) -> FakeOptions:
    """The fake backend's options out of the service's settings; sizes not set become a small machine's."""
    return FakeOptions(
        max_model_len=told.max_model_len or 4096,
        max_num_seqs=told.max_num_seqs,
        max_num_batched_tokens=told.max_num_batched_tokens,
        num_blocks=told.num_blocks or 4096,
        block_size=told.block_size,
        model_name=told.served_model_name or "drumline-fake",
        step_ms=told.fake_step_ms,
        eos_chance=told.fake_eos_chance,
        alphabet=told.fake_alphabet,
        fail_token=told.fake_fail_token,
        crash_token=told.fake_crash_token,
        ragged_granted=told.ragged != "refuse",
        declared_drafter=told.fake_drafter,
        drafter="mtp" if told.drafter in ("ngram", "mtp") and told.mtp_depth else "none",
        draft_luck=told.fake_draft_luck,
        mtp_depth=told.mtp_depth,
        switches=RaggedSwitches(told.mtp_per_seq_kv, told.v4_xs_per_seq),
    )
