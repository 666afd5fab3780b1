"""The fake backend as a model: nothing but a sequence's own tokens, read through its own blocks, decides what it says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from executor_svc.backends.fake import FakeBackend, FakeOptions
from executor_svc.backends.fake_tokenizer import SPECIALS, build
from executor_svc.batch import Assembler
from executor_svc.commit import commit
from executor_svc.plan import StepResult
from executor_svc.service import slot_limits
from executor_svc.slots import Slots
from executor_svc.wire import plan_of
from tests.support.executor_process import new_sequence, plan, prompt_rows

PREFILL, LAST, DECODE = 1, 2, 3


class Machine:
    """A fake backend with its slots, driven plan by plan."""

    def __init__(self, **options: Any) -> None:
        self.backend = FakeBackend(FakeOptions(**({"max_model_len": 256, "max_num_seqs": 8, "num_blocks": 128} | options)))
        self.slots = Slots(slot_limits(self.backend.model, self.backend.info))
        self.assembler = Assembler(self.slots)

    def step(self, **columns: Any) -> StepResult:
        wire = plan(step_id=1, session_epoch=1, **columns)
        step = self.assembler.apply(plan_of(wire, max_num_seqs=8))
        return commit(self.slots, step, self.backend.forward(step.batch))

    def generate(
        self, prompt: list[int], num_tokens: int, *, slot: int = 0, blocks: list[int] | None = None, **sampling: Any
    ) -> list[int]:
        blocks = blocks or list(range(slot * 16, slot * 16 + 16))
        first = self.step(**prompt_rows({slot: prompt}, blocks={slot: blocks}, max_tokens=num_tokens, **sampling))
        tokens = first.token_ids.tolist()
        while len(tokens) < num_tokens and not first.finished:
            first = self.step(repeat_rows=True)
            tokens += first.token_ids.tolist()
        return tokens


prompts = st.lists(st.integers(3, 389), min_size=1, max_size=60)
samplings = st.sampled_from([{}, {"temperature": 0.8, "seed": 5}, {"temperature": 0.8, "seed": 6}])


@settings(max_examples=30, deadline=None)
@given(prompt=prompts, sampling=samplings, data=st.data())
def test_o5_any_chunking_says_the_same(prompt: list[int], sampling: dict, data: st.DataObject) -> None:
    expected = Machine().generate(prompt, 6, **sampling)
    machine = Machine()
    done, columns = (
        0,
        {"new_sequences": [new_sequence(0, prompt, max_tokens=6, **sampling)], "block_row": [0] * 16, "block_id": list(range(16))},
    )
    while done < len(prompt):
        size = data.draw(st.integers(1, len(prompt) - done))
        kind = LAST if done + size == len(prompt) else PREFILL
        result = machine.step(slot=[0], row_kind=[kind], num_tokens=[size], start=[done], **columns)
        done, columns = done + size, {}
    tokens = result.token_ids.tolist() + [int(machine.step(repeat_rows=True).token_ids[0]) for _ in range(5)]
    assert tokens == expected


@settings(max_examples=30, deadline=None)
@given(batch=st.lists(prompts, min_size=2, max_size=6), sampling=samplings, rng=st.randoms(use_true_random=False))
def test_o2_b045_batch_mates_and_scattered_blocks_change_nothing(batch: list[list[int]], sampling: dict, rng: Any) -> None:
    expected = [Machine().generate(prompt, 5, **sampling) for prompt in batch]
    blocks = list(range(128))
    rng.shuffle(blocks)
    order = list(range(len(batch)))
    rng.shuffle(order)
    machine = Machine()
    tables = {slot: blocks[slot * 16 : slot * 16 + 16] for slot in order}
    results = [machine.step(**prompt_rows({slot: batch[slot] for slot in order}, blocks=tables, max_tokens=5, **sampling))]
    results += [machine.step(repeat_rows=True) for _ in range(4)]
    for row, slot in enumerate(order):
        assert [int(result.token_ids[row]) for result in results] == expected[slot]


def test_o4_b061_a_prefix_hit_says_what_a_miss_says() -> None:
    prompt = list(range(3, 43))
    machine = Machine()
    missed = machine.generate(prompt, 6, blocks=list(range(16)))
    columns = prompt_rows({1: prompt}, blocks={1: [0, 1, *range(20, 30)]}, num_cached_tokens=32, max_tokens=6)
    columns |= {"num_tokens": [8], "start": [32]}
    hit = [machine.step(**columns)] + [machine.step(repeat_rows=True) for _ in range(5)]
    assert [int(result.token_ids[0]) for result in hit] == missed


def test_o6_recomputing_prompt_and_output_elsewhere_goes_on_with_the_same_tokens() -> None:
    prompt, sampling = list(range(3, 30)), {"temperature": 0.9, "seed": 3}
    whole = Machine().generate(prompt, 10, **sampling)
    columns = prompt_rows(
        {4: prompt + whole[:4]}, blocks={4: list(range(60, 76))}, num_prompt_tokens=len(prompt), max_tokens=10, **sampling
    )
    machine = Machine()
    moved = [machine.step(**columns)] + [machine.step(repeat_rows=True) for _ in range(5)]
    assert [int(result.token_ids[0]) for result in moved] == whole[4:]
    assert moved[-1].finished == [(0, 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cache, tables, slots: tables.__setitem__((0, 0), 7),
        lambda cache, tables, slots: tables.__setitem__((0, slice(0, 2)), [1, 0]),
        lambda cache, tables, slots: cache.__setitem__((slice(0, 3), 3), 0),
        lambda cache, tables, slots: slots.num_computed.__setitem__(0, 39),
    ],
    ids=["another block", "swapped blocks", "a lost write", "a stale length"],
)
def test_corruption_becomes_a_wrong_token(wrong: Any) -> None:
    """Else a scheduler bug would stay invisible behind the fake."""
    prompt = list(range(3, 43))
    good, bad = Machine(), Machine()
    for machine in (good, bad):
        machine.generate(prompt, 1, blocks=[*range(16)], temperature=0.5)
        machine.step(freed_slots=[0])
    assert good.generate(prompt, 2) == bad.generate(prompt, 2)
    columns = prompt_rows({0: prompt}, blocks={0: [*range(16)]}, max_tokens=20)
    for machine in (good, bad):
        machine.step(freed_slots=[0], **columns)
    wrong(bad.backend._cache, bad.slots.blocks.table, bad.slots)
    bad.backend._sums[:] = bad.backend._cache.sum(axis=1)
    if bad.slots.num_computed[0] == 39:
        bad.slots.num_known[0] = 40
    assert good.step(repeat_rows=True).token_ids.tolist() != bad.step(repeat_rows=True).token_ids.tolist()


def test_copy_on_write_moves_the_content() -> None:
    prompt = list(range(3, 43))
    good, copied = Machine(), Machine()
    assert good.generate(prompt, 1) == copied.generate(prompt, 1)
    columns = prompt_rows({1: prompt}, blocks={1: [0, 1, 99]}, num_cached_tokens=36, max_tokens=3) | {
        "num_tokens": [4],
        "start": [36],
    }
    result = copied.step(copy_src=[2], copy_dst=[99], **columns)
    assert result.num_copied_on_write == 1
    assert result.token_ids.tolist() == Machine().generate(prompt, 1)
    assert copied.step(copy_src=[3], copy_dst=[4]).num_copied_on_write == 1


def test_seeds_matter_only_when_sampling() -> None:
    prompt = [9, 8, 7]
    sampled = {seed: Machine().generate(prompt, 12, temperature=1.0, seed=seed) for seed in (1, 2)}
    assert sampled[1] != sampled[2]
    assert Machine().generate(prompt, 12, seed=1) == Machine().generate(prompt, 12, seed=2)


def test_end_ids_wait_for_min_tokens_and_ignore_eos_is_obeyed() -> None:
    options = {"eos_chance": 1.0}
    assert Machine(**options).generate([5], 8) == [2]
    late = Machine(**options).generate([5], 8, min_tokens=3)
    assert 2 not in late[:3]
    assert late[3:] == [2]
    assert Machine(**options).generate([5], 8, ignore_eos=True) == [2] * 8


def test_a_strong_bias_forces_and_forbids() -> None:
    assert Machine().generate([5], 4, logit_bias_ids=[300], logit_bias_values=[100.0]) == [300] * 4
    assert 2 not in Machine(eos_chance=1.0).generate([5], 4, logit_bias_ids=[2], logit_bias_values=[-100.0])


def test_logprobs_are_finite_and_belong_to_the_tokens() -> None:
    machine = Machine()
    columns = prompt_rows({0: [5, 6, 7, 8]}, blocks={0: [0]}, logprobs=True, top_logprobs=3, prompt_logprobs=True, max_tokens=2)
    result = machine.step(**columns)
    score, prompt = result.logprobs[0], result.prompt_logprobs[0]
    assert score.token_ids.tolist() == result.token_ids.tolist()
    assert score.top_token_ids.shape == (1, 3)
    assert prompt.token_ids.tolist() == [6, 7, 8]
    assert prompt.top_logprobs.shape == (3, 3)
    assert np.isfinite(prompt.logprobs).all()


def test_prompt_logprobs_come_chunk_by_chunk_and_not_twice_after_a_move() -> None:
    machine = Machine()
    new = new_sequence(0, [5, 6, 7, 8, 9], prompt_logprobs=True, max_tokens=0, num_prompt_tokens=5)
    first = machine.step(new_sequences=[new], slot=[0], row_kind=[PREFILL], num_tokens=[2], start=[0], block_row=[0], block_id=[0])
    last = machine.step(slot=[0], row_kind=[LAST], num_tokens=[3], start=[2])
    assert first.prompt_logprobs[0].token_ids.tolist() == [6, 7]
    assert last.prompt_logprobs[0].token_ids.tolist() == [8, 9]
    assert (last.finished, last.num_emitted.tolist()) == ([(0, 2)], [0])
    new.slot, new.num_prompt_logprobs_done = 1, 2
    moved = machine.step(new_sequences=[new], slot=[1], row_kind=[LAST], num_tokens=[5], start=[0], block_row=[0], block_id=[1])
    assert moved.prompt_logprobs[0].token_ids.tolist() == [8, 9]


def test_digests_are_equal_for_equal_contexts_and_zero_for_skipped_rows() -> None:
    machine = Machine()
    columns = prompt_rows({0: [5, 6], 1: [5, 6], 2: [6, 5]}, blocks={0: [0], 1: [1], 2: [2]}, max_tokens=5)
    digest = machine.step(want_digests=True, **columns).digest
    assert digest[0] == digest[1] != digest[2]
    assert machine.step(want_digests=True, repeat_rows=True, aborted_slots=[1]).digest[1] == 0
    assert len(machine.step(repeat_rows=True).digest) == 0


def test_the_tokenizer_knows_every_id_and_every_byte() -> None:
    vocabulary = build()
    tokenizer = Tokenizer.from_str(vocabulary.tokenizer_json.decode())
    assert tokenizer.get_vocab_size() == vocabulary.size
    assert [tokenizer.token_to_id(text) for text in SPECIALS] == [0, 1, 2]
    assert tokenizer.decode(list(vocabulary.word_ids)).startswith(" the a to of")
    text = "".join(chr(point) for point in range(1, 0x3000) if not 0xD800 <= point < 0xE000)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert build() == vocabulary


def test_the_step_takes_as_long_as_asked() -> None:
    machine = Machine(step_ms=30.0)
    result = machine.step(**prompt_rows({0: [5]}, blocks={0: [0]}))
    assert result.forward_ns >= 30e6


def test_the_alphabet_of_bytes_is_hard_on_detokenisers() -> None:
    tokens = Machine(alphabet="bytes").generate([5], 60)
    assert any(token - len(SPECIALS) >= 0x80 for token in tokens)
