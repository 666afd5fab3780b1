"""The CUDA backend as it is, with its kernels under the emulator: against transformers, against the CPU backend, and its graphs."""

import numpy as np
import pytest
import torch

from executor_svc.backends.cpu import CpuBackend
from executor_svc.backends.cuda import sampler
from executor_svc.backends.cuda.backend import CudaBackend
from executor_svc.backends.cuda.graphs import bucket_sizes
from executor_svc.backends.cuda.place import Emulated, Gpu, GraphBroken
from executor_svc.config import ExecutorSettings
from executor_svc.model.errors import ModelError, UnsupportedModel
from executor_svc.model.load import open_model
from executor_svc.plan import Sampling
from kernels.cuda.rms_norm import rms_norm
from kernels.emulator.device import EmulatedDevice
from tests.support import tiny_models
from tests.support.batches import Driver

# Heads of 64, which the tensor-core kernel needs; everything else that a family can do is in one of them.
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
FAMILIES = {
    "llama": tiny_models.LlamaConfig(**tiny_models._shape(**SHAPE)),
    "qwen2": tiny_models.Qwen2Config(**tiny_models._shape(**{**SHAPE, "num_attention_heads": 1})),
    "qwen3": tiny_models.Qwen3Config(**tiny_models._shape(**SHAPE)),
    "mistral": tiny_models.MistralConfig(**tiny_models._shape(**SHAPE, sliding_window=24)),
    "gemma3": tiny_models.gemma3_config(**{**SHAPE, "hidden_size": 72}),
}


def opened(folder, *, precision="f32", **more):
    told = ExecutorSettings(
        model=str(folder), precision=precision, num_blocks=64, max_num_seqs=16, max_num_batched_tokens=256, num_threads=1, **more
    )
    return CudaBackend(open_model(folder), told, Emulated()), CpuBackend(told.model_copy(update={"precision": "f32"}))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """(the model in transformers, its folder)"""
    model = tiny_models.make(FAMILIES[request.param])
    return model, tiny_models.save(model, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    model = tiny_models.make(FAMILIES["llama"])
    return model, tiny_models.save(model, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def pair(llama):
    """(CUDA backend, CPU backend), both in float32."""
    return opened(llama[1])


def prompt_of(length, *, seed=0):
    return np.random.default_rng(seed).integers(2, tiny_models.VOCAB_SIZE, length).tolist()


def test_greedy_tokens_equal_transformers(family):
    """Chunks beside decode rows, graphs of as many rows as there are, and of 4 for 3."""
    model, folder = family
    backend, _ = opened(folder)
    prompts = [prompt_of(length, seed=length) for length in (1, 16, 40)]
    driver = Driver(backend)
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.generate(sequences[:2], num_tokens=6, chunk=16)
    driver.generate(sequences, num_tokens=12, chunk=16)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        options = {"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0}
        with torch.inference_mode():
            theirs = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), **options)
        assert sequence.tokens[: len(prompt) + 12] == theirs[0].tolist()


def test_bfloat16_logits_are_as_near_to_float32_as_transformers_own(llama):
    model, folder = llama
    backend, _ = opened(folder, precision="bf16")
    assert backend.info.kv_cache_dtype == "bfloat16"
    tokens = prompt_of(75)
    driver = Driver(backend)
    sequence = driver.add(tokens, sampling=Sampling(prompt_logprobs=True, logprobs=True, top_logprobs=1))
    ours = driver.run([(sequence, 75)]).prompt_logprobs[0].logprobs
    with torch.inference_mode():
        exact = scores(model(torch.tensor([tokens]), use_cache=False).logits[0], tokens)
        rounded = scores(model.to(torch.bfloat16)(torch.tensor([tokens]), use_cache=False).logits[0], tokens)
        model.to(torch.float32)
    assert np.abs(ours - exact).max() <= 1.5 * np.abs(rounded - exact).max() + 1e-3


def scores(logits, tokens):
    """Log-probabilities of tokens 1.."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)[:-1]
    return logprobs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].numpy()


SAMPLINGS = {
    "seeded": Sampling(temperature=0.8, seed=5),
    "filters": Sampling(temperature=1.2, top_k=40, top_p=0.9, min_p=0.02, seed=6),
    "penalties": Sampling(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4, seed=7),
    "bias": Sampling(temperature=0.9, bias_ids=(5, 9), bias_values=(4.0, -100.0), seed=8),
    "min_tokens": Sampling(temperature=0.9, min_tokens=20, stop_token_ids=(3, 4, 5), seed=2**63 + 1),
    "greedy": Sampling(),
}


def test_every_way_to_sample_gives_what_the_cpu_backend_gives(pair):
    rows = []
    for backend in pair:
        driver = Driver(backend)
        sequences = [driver.add(prompt_of(9 + i, seed=i), sampling=told) for i, told in enumerate(SAMPLINGS.values())]
        driver.generate(sequences, num_tokens=20)
        rows.append({name: sequence.output[:20] for name, sequence in zip(SAMPLINGS, sequences, strict=True)})
    assert rows[0] == rows[1]


def test_more_history_than_there_is_room_for_is_sampled_on_the_host(pair, monkeypatch):
    """The same tokens either way, and no more often than that: a row without penalties sends no history, however long it is."""
    backend, outputs, on_host = pair[0], [], []
    plain = sampler._on_host
    monkeypatch.setattr(sampler, "_on_host", lambda *args, **more: on_host.append(1) or plain(*args, **more))
    for most, name, times in ((1 << 20, "penalties", 0), (8, "penalties", 6), (8, "seeded", 0)):
        monkeypatch.setattr(backend._sampler._sampler, "_max_words", most)
        driver = Driver(backend)
        sequence = driver.add(prompt_of(12), sampling=SAMPLINGS[name])
        on_host.clear()
        driver.generate([sequence], num_tokens=6)
        outputs.append(sequence.output[:6])
        assert len(on_host) == times
    assert outputs[0] == outputs[1]


def test_logprobs_of_tokens_and_prompts_are_those_of_the_cpu_backend(pair):
    results = []
    for backend in pair:
        driver = Driver(backend)
        told = Sampling(logprobs=True, top_logprobs=3, prompt_logprobs=True)
        results.append(driver.run([(driver.add(prompt_of(20), sampling=told), 20), (driver.add(prompt_of(5)), 5)]))
    ours, theirs = results
    assert ours.logprobs.keys() == theirs.logprobs.keys() == {0}
    assert ours.prompt_logprobs.keys() == theirs.prompt_logprobs.keys() == {0}
    for mine, other in ((ours.logprobs[0], theirs.logprobs[0]), (ours.prompt_logprobs[0], theirs.prompt_logprobs[0])):
        np.testing.assert_array_equal(mine.token_ids, other.token_ids)
        np.testing.assert_array_equal(mine.top_token_ids, other.top_token_ids)
        np.testing.assert_allclose(mine.top_logprobs, other.top_logprobs, atol=1e-4)


def test_a_row_whose_numbers_break_ends_alone(llama, tmp_path):
    model = tiny_models.make(FAMILIES["llama"])
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = float("nan")
    backend, _ = opened(tiny_models.save(model, tmp_path / "broken"))
    driver = Driver(backend)
    good, bad = driver.add([8, 9, 10, 11, 12, 13]), driver.add([7, 7, 7])
    for rows in ([(good, 6), (bad, 3)], [(good, 1), (bad, 1)]):  # a chunk of each, then a graph
        sampled = driver.run(rows)
        assert list(sampled.row_errors) == [1]
        bad.tokens[-1] = 7


def test_blocks_are_copied_before_rows_run(pair):
    backend, _ = pair
    driver = Driver(backend)
    first = driver.add(prompt_of(16))
    driver.run([(first, 16)])
    batch = driver.batch([(first, 1)])
    batch.copy_src, batch.copy_dst = np.array([first.blocks[0]], np.int32), np.array([driver.free[0]], np.int32)
    backend.forward(batch)
    for array in (*backend._cache.keys, *backend._cache.values):
        assert torch.equal(array[first.blocks[0]], array[driver.free[0]])


def test_a_graph_gives_what_a_step_without_one_gives(pair):
    """The same tokens, for sizes that are padded and that are not. (On a processor torch rounds by the number of rows.)"""
    backend, _ = pair
    for count in (1, 3, 4, 5):
        driver = Driver(backend)
        sequences = [driver.add(prompt_of(3 + i, seed=i)) for i in range(count)]
        driver.run([(sequence, sequence.pending) for sequence in sequences])
        batch = driver.batch([(sequence, 1) for sequence in sequences])
        graph = backend.forward(batch)
        with torch.inference_mode():
            fed = backend._inputs.fill(batch, num_rows=count, num_tokens=count)
            plain = backend._decoder.hidden(fed, cache=backend._cache)
            chosen = backend._decoder.logits(plain).argmax(dim=1).numpy()
        np.testing.assert_array_equal(graph.token_ids, chosen)


def test_the_emulated_graph_notices_what_a_real_one_would_freeze():
    place, rows = Emulated(), [2]
    x, out, weight = torch.ones(4, 64), torch.empty(4, 64), torch.ones(64)

    def step():
        rms_norm(place.kernels, x[: rows[0]], weight=weight, eps=1e-5, out=out[: rows[0]])

    replay = place.capture(step)
    replay()
    rows[0] = 3
    with pytest.raises(GraphBroken, match="rms_norm"):
        replay()


def test_sizes_of_graphs():
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(5) == [1, 2, 4, 5]
    assert bucket_sizes(8) == [1, 2, 4, 8]
    assert bucket_sizes(130)[-2:] == [128, 130]
    assert bucket_sizes(200)[-3:] == [160, 192, 200]


def test_no_step_of_a_full_backend_leaves_its_buffers(llama):
    """Three rows and three tokens at most: the largest graph has no more than there is room for. Check mode sees every access."""
    told = ExecutorSettings(model=str(llama[1]), precision="bf16", num_blocks=8, max_num_seqs=3, max_num_batched_tokens=2)
    backend = CudaBackend(open_model(llama[1]), told, Emulated(EmulatedDevice(check=True)))
    driver = Driver(backend)
    sequences = [driver.add(prompt_of(2, seed=i)) for i in range(3)]
    for sequence in sequences:
        driver.run([(sequence, 2)])
    driver.run([(sequence, 1) for sequence in sequences])
    assert [len(sequence.output) for sequence in sequences] == [2, 2, 2]


def test_a_backend_of_one_row_and_one_token_starts(llama):
    told = ExecutorSettings(model=str(llama[1]), precision="f32", num_blocks=1, max_num_seqs=1, max_num_batched_tokens=1)
    driver = Driver(CudaBackend(open_model(llama[1]), told, Emulated()))
    sequence = driver.add([5])
    driver.generate([sequence], num_tokens=3)
    assert len(sequence.output) == 3


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"precision": "int8"}, "precision"),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype"),
        ({"block_size": 32}, "block_size"),
        ({"batch_invariant": True}, "batch_invariant"),
    ],
)
def test_settings_that_do_not_fit_are_named(llama, more, name):
    told = ExecutorSettings(**{"model": str(llama[1]), "precision": "f32", "num_blocks": 64, **more})
    with pytest.raises(ModelError, match=name):
        CudaBackend(open_model(llama[1]), told, Emulated())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_said_in_words():
    with pytest.raises(ModelError, match="sees no CUDA device"):
        Gpu()


def test_a_mixture_of_experts_is_refused_instead_of_served_without_them(tmp_path):
    folder = tiny_models.save(tiny_models.make(tiny_models.glm4_moe_config(**SHAPE)), tmp_path)
    with pytest.raises(UnsupportedModel, match="glm4_moe: mixtures of experts"):
        opened(folder)
