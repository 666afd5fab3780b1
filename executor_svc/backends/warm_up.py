"""A batch that nobody asked for, run once at start so that every kernel is compiled before the first request waits for it."""

import numpy as np

from executor_svc.plan import Batch, SampleColumns


def plain_batch(num_tokens: int, *, block_size: int) -> Batch:
    """One sequence of `num_tokens` zeros in blocks 0.., which scores its prompt and samples one token with log-probabilities."""
    num_blocks = -(-num_tokens // block_size)
    return Batch(
        token_ids=np.zeros(num_tokens, np.int32),
        positions=np.arange(num_tokens, dtype=np.int32),
        query_start=np.array([0, num_tokens], np.int32),
        context_len=np.array([num_tokens], np.int32),
        block_tables=np.arange(num_blocks, dtype=np.int32)[None, :],
        sample=_plain_columns(),
        prompt_logprob_rows=np.zeros(1, np.int32),
        prompt_num_top=np.ones(1, np.int32),
        copy_src=np.zeros(0, np.int32),
        copy_dst=np.zeros(0, np.int32),
        want_digests=True,
        prompt_target_start=np.array([0, 1], np.int32),
        prompt_targets=np.zeros(1, np.int32),
    )


def _plain_columns() -> SampleColumns:
    zero, one, none = np.zeros(1, np.int32), np.ones(1, np.int32), np.zeros(0, np.int32)
    off, on = np.zeros(1, np.float32), np.ones(1, np.float32)
    return SampleColumns(
        rows=zero,
        slots=zero,
        temperature=on,
        top_k=one,
        top_p=on,
        min_p=off,
        repetition_penalty=on,
        presence_penalty=off,
        frequency_penalty=off,
        seed=np.zeros(1, np.uint64),
        output_pos=zero,
        tokens=np.zeros((1, 1), np.int32),
        num_prompt=one,
        num_known=one,
        ban_end=np.zeros(1, np.bool_),
        end_start=np.zeros(2, np.int32),
        end_ids=none,
        bias_start=np.zeros(2, np.int32),
        bias_ids=none,
        bias_values=np.zeros(0, np.float32),
        want_logprobs=np.ones(1, np.bool_),
        num_top=one,
    )
