"""SmolLM2 in integers, rotated or as its file holds them: near float32, the same bits whatever the batch, chunks or hits."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.model.precision import INTEGERS
from executor_svc.plan import Sampling
from gateway.template import ChatTemplate
from kernels.cpu.byte_products import chosen
from tests.support.batches import Driver
from tests.support.parity import FIXTURE, NUM_TOKENS

CASES = json.loads(FIXTURE.read_text())
README = Path(__file__).resolve().parents[3] / "README.md"
BUDGET = 256
NUM_OUT = 16


@pytest.fixture(scope="module", params=INTEGERS)
def backend(request):
    made = CpuBackend(ExecutorSettings(max_model_len=1024, num_blocks=1200, precision=request.param))
    yield made
    made.close()


@pytest.fixture(scope="module")
def outputs(backend) -> list[list[int]]:
    """All prompts in one ragged batch, unchunked but for the token budget."""
    driver = Driver(backend)
    sequences = [driver.add(case["prompt_ids"]) for case in CASES]
    driver.generate(sequences, num_tokens=NUM_OUT, budget=BUDGET)
    return [sequence.output for sequence in sequences]


def test_a_file_of_integers_is_served_in_integers(backend):
    assert backend.info.precision in INTEGERS
    assert backend.info.batch_invariant
    assert "cpu.integer_linear" in backend.info.kernels
    assert f"cpu.byte_products.{chosen().name}" in backend.info.kernels


def test_o2_alone_equals_one_ragged_batch(backend, outputs):
    for index in range(0, len(CASES), 3):
        driver = Driver(backend, seed=3)
        sequence = driver.add(CASES[index]["prompt_ids"])
        driver.generate([sequence], num_tokens=NUM_OUT)
        assert sequence.output == outputs[index], index


def test_o5_chunks_after_a_prefix_hit(backend, outputs):
    driver = Driver(backend, seed=2)
    first = [driver.add(case["prompt_ids"]) for case in CASES]
    driver.generate(first, num_tokens=1, budget=BUDGET)
    sequences = [
        driver.add(case["prompt_ids"], shared=done, cached=(len(case["prompt_ids"]) - 1) // 16 * 16)
        for case, done in zip(CASES, first, strict=True)
    ]
    assert sum(sequence.computed for sequence in sequences) > 300
    driver.generate(sequences, num_tokens=NUM_OUT, chunk=16, budget=BUDGET)
    assert [sequence.output for sequence in sequences] == outputs


def test_last_hidden_states_are_equal_to_the_bit(backend):
    driver = Driver(backend, seed=5)
    cases = [case["prompt_ids"] for case in CASES[:6]]
    alone = [driver.run([(s, s.pending)], want_digests=True).digest[0] for s in map(driver.add, cases)]
    together = [(s, s.pending) for s in map(driver.add, cases)]
    assert driver.run(together, want_digests=True).digest.tolist() == alone


def test_the_question_that_the_readme_asks_is_answered(backend):
    """The first answer that anybody sees comes from the default precision, where two near tokens may change places."""
    [messages] = re.findall(r'"messages": (\[.*?\])', README.read_text())
    model = backend.model
    tokenizer = Tokenizer.from_str(model.tokenizer_json.decode())
    text = ChatTemplate(model.chat_template, special_tokens={}).render(json.loads(messages), add_generation_prompt=True)
    driver = Driver(backend, seed=6)
    sequence = driver.add(tokenizer.encode(text, add_special_tokens=False).ids)
    driver.generate([sequence], num_tokens=8)
    assert "The capital of Germany is Berlin." in tokenizer.decode(sequence.output)


def test_it_is_near_float32(backend):
    """Fed transformers' float32 continuations, the likeliest token is theirs nearly everywhere, and near as likely."""
    driver, agreed = Driver(backend, seed=4), 0
    asked = Sampling(prompt_logprobs=True, top_logprobs=1)
    rows = [driver.add(case["prompt_ids"] + case["tokens"], sampling=asked) for case in CASES]
    for first in range(0, len(rows), 5):
        some = rows[first : first + 5]
        scores = driver.run([(sequence, sequence.pending) for sequence in some]).prompt_logprobs
        for place, case in enumerate(CASES[first : first + 5]):
            agreed += int((scores[place].top_token_ids[-NUM_TOKENS:, 0] == np.array(case["tokens"])).sum())
    assert agreed > 0.96 * len(CASES) * NUM_TOKENS
