"""The draft head that ships for the default model: found by itself, and right often enough to be worth it."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.model.load import open_model
from executor_svc.plan import Sampling
from executor_svc.training.config import TrainDraftSettings
from executor_svc.training.dialogues import chatml
from tests.support.drafted import Output, run

QUESTIONS = (Path(__file__).parents[3] / "bench" / "questions.txt").read_text().splitlines()
DEPTH = 3


@pytest.fixture(scope="module")
def backend():
    backend = CpuBackend(ExecutorSettings(max_model_len=256, num_blocks=16 * 34, max_num_seqs=32, max_num_batched_tokens=4096))
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_str(open_model(None).text.tokenizer_json.decode())
    template = chatml(tokenizer, system=TrainDraftSettings().system)
    asked = [tokenizer.encode(question, add_special_tokens=False).ids for question in QUESTIONS]
    return [[*template.before, *ids, *template.between] for ids in asked]


def answers(backend: CpuBackend, prompts: list[list[int]], *, depth: int, **how) -> list[Output]:
    backend.reset()
    samplings = [Sampling(max_tokens=96, stop_token_ids=(2,), seed=seed, **how) for seed in range(len(prompts))]
    return run(backend, prompts, samplings, drafter=backend.drafter if depth else None, depth=depth)


def test_the_default_model_drafts_by_itself(backend) -> None:
    assert (backend.info.drafter, backend.info.mtp_depth) == ("mtp", DEPTH)


def test_on_questions_that_it_never_saw_the_first_draft_is_right_45_times_of_100(backend, prompts) -> None:
    """Chat questions answered greedily; none of them was trained on (the model wrote its own)."""
    first = answers(backend, prompts, depth=1)
    assert sum(out.num_accepted for out in first) >= 0.45 * sum(out.num_drafted for out in first) > 0
    deep = answers(backend, prompts, depth=DEPTH)
    assert [out.tokens for out in deep] == [out.tokens for out in first]
    per_step = sum(len(out.tokens) - 1 for out in deep) / sum(out.num_steps - 1 for out in deep)
    assert per_step >= 1.6


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.2])
def test_b047_drafts_are_accepted_at_every_temperature(backend, prompts, temperature) -> None:
    """And change nothing there: both sides draw with the same noise."""
    how = {"temperature": temperature, "top_p": 0.9}
    drafted = answers(backend, prompts[:8], depth=DEPTH, **how)
    assert [out.tokens for out in drafted] == [out.tokens for out in answers(backend, prompts[:8], depth=0, **how)]
    assert sum(out.num_accepted for out in drafted) > 0.05 * sum(out.num_drafted for out in drafted)


def test_the_short_way_to_a_greedy_draft_guesses_what_the_sampler_would(backend, prompts) -> None:
    """Nothing to adjust and nothing to draw: the likeliest of what the head knows. A bias of nothing takes the long way."""
    short = answers(backend, prompts[:8], depth=DEPTH)
    long = answers(backend, prompts[:8], depth=DEPTH, bias_ids=(0,), bias_values=(0.0,))
    for ours, theirs in zip(short, long, strict=True):
        assert (ours.tokens, ours.num_drafted, ours.num_accepted) == (theirs.tokens, theirs.num_drafted, theirs.num_accepted)
