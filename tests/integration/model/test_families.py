"""Every family against transformers on the same random weights: logits to 1e-4, chunked or not, and bit-equal in any batch."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.plan import Sampling
from tests.support import tiny_models
from tests.support.batches import Driver

NAMES = list(tiny_models.configs())
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory):
    """(our backend, the same model in transformers)."""
    model = tiny_models.make(tiny_models.configs()[request.param])
    folder = tiny_models.save(model, tmp_path_factory.mktemp(request.param))
    told = ExecutorSettings(model=str(folder), precision="f32", num_blocks=256, num_threads=1)
    return CpuBackend(told), model


def prompt_of(length: int, *, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, tiny_models.VOCAB_SIZE, length).tolist()


def our_logits(backend: CpuBackend, tokens: list[int], *, chunks: list[int]) -> np.ndarray:
    """Logits after every token, from the decoder that the backend runs, chunk by chunk."""
    driver, parts = Driver(backend), []
    sequence = driver.add(tokens)
    for count in chunks:
        batch = driver.batch([(sequence, count)])
        with torch.inference_mode():
            hidden = backend._decoder.hidden(batch, cache=backend._cache)
            parts.append(backend._decoder.logits(hidden[:count]))
        sequence.computed += count
    return np.concatenate(parts)


@pytest.mark.parametrize("chunks", [[75], [16, 16, 16, 16, 11], [1] * 75, [7, 30, 38]], ids=["whole", "16", "1", "uneven"])
def test_logits_equal_transformers(pair, chunks):
    """b071: windows of 20 and 24 are crossed well before 75 tokens."""
    backend, model = pair
    tokens = prompt_of(75)
    with torch.inference_mode():
        theirs = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    ours = our_logits(backend, tokens, chunks=chunks)
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 3, 16, 75])
def test_chunking_changes_no_bit(pair, chunk):
    backend, _ = pair
    tokens = prompt_of(75)
    chunks = [chunk] * (75 // chunk) + [75 % chunk] * bool(75 % chunk)
    whole = our_logits(backend, tokens, chunks=[75])
    assert np.array_equal(our_logits(backend, tokens, chunks=chunks), whole)


def test_greedy_tokens_equal_transformers(pair):
    backend, model = pair
    prompts = [prompt_of(length, seed=length) for length in (1, 15, 16, 17, 40)]
    driver = Driver(backend)
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.generate(sequences, num_tokens=24, chunk=16)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        with torch.inference_mode():
            options = {"do_sample": False, "max_new_tokens": 24, "min_new_tokens": 24, "eos_token_id": None, "pad_token_id": 0}
            theirs = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), **options)
        assert sequence.tokens == theirs[0].tolist()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_o2_batch_mates_change_no_bit(pair, data):
    """B046, B068: a row's digests are the same alone and beside any mates, whatever is fed of them and in whatever order."""
    backend, _ = pair
    length = data.draw(st.integers(1, 50))
    tokens = prompt_of(length, seed=length)

    def digests(lengths: list[int], place: int, chunk: int) -> list[int]:
        driver, seen = Driver(backend), []
        mates = [driver.add(prompt_of(size, seed=1000 + size)) for size in lengths]
        own = driver.add(tokens)
        for _ in range(40):
            rows = [(mate, min(mate.pending, 11)) for mate in mates]
            count = min(own.pending, chunk)
            rows.insert(place, (own, count))
            sampled = driver.run(rows, want_digests=True)
            if own.computed >= length:
                seen.append(int(sampled.digest[place]))
            if len(seen) == 3:
                return seen
        raise AssertionError("did not finish")

    lengths = data.draw(st.lists(st.integers(1, 60), max_size=20))
    place = data.draw(st.integers(0, len(lengths)))
    chunk = data.draw(st.integers(2, 50))
    assert digests(lengths, place, chunk) == digests([], 0, 50)


def test_identical_prompts_give_identical_rows(pair):
    """B068: one token a step, four times the same prompt."""
    backend, _ = pair
    driver = Driver(backend)
    sequences = [driver.add(prompt_of(9)) for _ in range(4)]
    driver.generate(sequences, num_tokens=12)
    assert len({tuple(sequence.output) for sequence in sequences}) == 1


def test_prefix_hit_changes_no_bit(pair):
    backend, _ = pair
    driver = Driver(backend)
    first = driver.add(prompt_of(50))
    driver.generate([first], num_tokens=2)
    hit = driver.add(prompt_of(50), shared=first, cached=48)
    again = driver.add(prompt_of(50))
    digests = [int(driver.run([(sequence, sequence.pending)], want_digests=True).digest[0]) for sequence in (hit, again)]
    assert digests[0] == digests[1]


def test_prompt_logprobs_equal_transformers(pair):
    backend, model = pair
    tokens = prompt_of(70)
    driver = Driver(backend)
    sequence = driver.add(tokens, sampling=Sampling(prompt_logprobs=True, top_logprobs=5))
    scores = []
    for count in (20, 1, 49):
        scores += driver.run([(sequence, count)]).prompt_logprobs.values()
    with torch.inference_mode():
        theirs = torch.log_softmax(model(torch.tensor([tokens])).logits[0, :-1], dim=1)
    ours = np.concatenate([score.logprobs for score in scores])
    assert np.concatenate([score.token_ids for score in scores]).tolist() == tokens[1:]
    np.testing.assert_allclose(ours, theirs[range(69), tokens[1:]].numpy(), atol=TOLERANCE)
    tops = np.concatenate([score.top_logprobs for score in scores])
    np.testing.assert_allclose(tops, theirs.topk(5, dim=1).values.numpy(), atol=TOLERANCE)
    assert np.isfinite(tops).all()
    assert (np.diff(tops, axis=1) <= 0).all()
