"""The CPU backend around the decoder: settings that do not fit, rows that fail alone, padding that is never chosen, copies."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.model import float_linear, probe
from executor_svc.model.errors import ModelError
from executor_svc.plan import Sampling
from executor_svc.wire import capabilities
from scheduler_svc.replay.host import flags_for
from tests.support import tiny_models
from tests.support.batches import Driver


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.save(tiny_models.make(tiny_models.configs()["llama"]), tmp_path_factory.mktemp("backend") / "tiny-llama")


def told(folder, **more) -> ExecutorSettings:
    return ExecutorSettings(**{"model": str(folder), "precision": "f32", "num_blocks": 64, "num_threads": 1, **more})


@pytest.fixture(scope="module")
def backend(folder):
    return CpuBackend(told(folder))


def prompt_of(length: int, *, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(2, tiny_models.VOCAB_SIZE, length).tolist()


def test_what_it_says_of_itself(backend, folder):
    info, model = backend.info, backend.model
    assert (info.block_size, info.num_blocks, info.precision, info.batch_invariant) == (16, 64, "f32", True)
    assert info.ragged_granted
    assert (model.model_name, model.max_model_len, model.vocab_size) == ("tiny-llama", 512, tiny_models.VOCAB_SIZE)
    assert model.eos_token_ids == (1,)
    assert Tokenizer.from_buffer(model.tokenizer_json).get_vocab_size() == model.vocab_size
    assert (
        CpuBackend(told(folder, served_model_name="mine", ragged="refuse")).info.ragged_reason == "refused by the setting `ragged`"
    )


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"max_model_len": 513}, "max_model_len"),
        ({"block_size": 32}, "block_size"),
        ({"num_blocks": 0, "kv_memory": 100}, "kv_memory"),
        ({"model": "nowhere.gguf"}, r"nowhere\.gguf"),
    ],
)
def test_settings_that_do_not_fit_are_named(folder, more, name):
    with pytest.raises(ModelError, match=name):
        CpuBackend(told(folder, **more))


def test_kv_memory_decides_the_blocks(folder):
    block_bytes = 2 * 3 * 2 * 16 * 16 * 4
    memory = 10 * block_bytes + 5
    assert CpuBackend(told(folder, num_blocks=0, kv_memory=memory)).info.num_blocks == 10
    halves = CpuBackend(told(folder, num_blocks=0, kv_memory=memory, kv_cache_dtype="float16"))
    assert halves.info.num_blocks == 20
    assert {array.dtype for array in (*halves._cache.keys, *halves._cache.values)} == {np.dtype(np.float16)}
    assert CpuBackend(told(folder, precision="int8", num_blocks=0, kv_memory=memory)).info.num_blocks == 20


@pytest.mark.parametrize("kv", ["float32", "float16"])
def test_a_replay_asks_for_the_type_that_keys_and_values_had(folder, kv):
    """A recording that knows no type was made in float32."""
    backend = CpuBackend(told(folder, kv_cache_dtype=kv))
    caps = capabilities(backend.model, backend.info, instance_id="x")
    assert flags_for(caps)[-2:] == ["--kv-cache-dtype", kv]
    caps.ClearField("kv_cache_dtype")
    assert flags_for(caps)[-2:] == ["--kv-cache-dtype", "float32"]


def test_a_value_beyond_half_precision_ends_its_row_by_name(tmp_path):
    model = tiny_models.make(tiny_models.configs()["llama"])
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.mul_(1e7)
    folder = tiny_models.save(model, tmp_path / "loud")
    for kv, ended in (("float32", {}), ("float16", {0: "internal"})):
        driver = Driver(CpuBackend(told(folder, kv_cache_dtype=kv)))
        sequence = driver.add(prompt_of(20))
        errors = driver.run([(sequence, 20)]).row_errors
        assert {row: code for row, (code, _) in errors.items()} == ended


def test_b070_a_row_that_is_not_finite_fails_alone(backend):
    """NaN in one row's cache: that row is an error, its seven neighbours keep every bit."""

    def run(*, poisoned: bool) -> tuple[list[int], dict]:
        driver = Driver(backend)
        sequences = [driver.add(prompt_of(20, seed=i)) for i in range(8)]
        driver.run([(sequence, 20) for sequence in sequences])
        if poisoned:
            backend._cache.values[1][sequences[3].blocks[0]] = np.nan
        sampled = driver.run([(sequence, 1) for sequence in sequences], want_digests=True)
        backend._cache.values[1][:] = 0
        return sampled.digest.tolist(), sampled.row_errors

    clean, errors = run(poisoned=False)
    assert errors == {}
    digests, errors = run(poisoned=True)
    assert list(errors) == [3]
    assert errors[3][0] == "internal"
    assert [d for i, d in enumerate(digests) if i != 3] == [d for i, d in enumerate(clean) if i != 3]


def test_b005_padding_of_the_head_is_never_chosen(folder, tmp_path):
    """The head has 272 rows, the tokenizer 265 ids: the rest cannot be sampled, biased or not, and is not in the vocabulary."""
    padded = tmp_path / "padded"
    tiny_models.save(tiny_models.make(tiny_models.configs()["llama"]), padded)
    content = json.loads((padded / "tokenizer.json").read_text())
    content["model"]["vocab"] = {token: index for token, index in content["model"]["vocab"].items() if index < 265}
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < 265]
    (padded / "tokenizer.json").write_text(json.dumps(content))
    backend = CpuBackend(told(padded))
    assert backend.model.vocab_size == 265
    driver = Driver(backend)
    sequences = [driver.add(prompt_of(5, seed=i), sampling=Sampling(temperature=2.0, seed=i)) for i in range(32)]
    driver.generate(sequences, num_tokens=8)
    assert max(max(sequence.output) for sequence in sequences) < 265


def test_copied_blocks_are_as_good_as_their_source(backend):
    driver = Driver(backend)
    sequence = driver.add(prompt_of(20))
    driver.run([(sequence, 20)])
    batch = driver.batch([(sequence, 1)], want_digests=True)
    expected = backend.forward(batch).digest[0]
    fresh = [driver.free.pop() for _ in sequence.blocks]
    batch.copy_src, batch.copy_dst = np.array(sequence.blocks, np.int32), np.array(fresh, np.int32)
    batch.block_tables = np.array([fresh], np.int32)
    assert backend.forward(batch).digest[0] == expected


def test_sampling_is_the_same_alone_and_in_a_batch(backend):
    """O3: seeded rows, with log-probabilities, beside others."""
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=1234, logprobs=True, top_logprobs=3)
    alone = Driver(backend).add(prompt_of(12), sampling=sampling)
    Driver(backend).generate([alone], num_tokens=12)
    driver = Driver(backend)
    mates = [driver.add(prompt_of(9 + i, seed=i), sampling=Sampling(temperature=1.0, seed=i)) for i in range(7)]
    own = driver.add(prompt_of(12), sampling=sampling)
    driver.generate([*mates, own], num_tokens=12, chunk=5)
    assert own.output == alone.output


def test_logprobs_of_a_sampled_token(backend):
    driver = Driver(backend)
    sequence = driver.add(prompt_of(6), sampling=Sampling(logprobs=True, top_logprobs=4))
    score = driver.run([(sequence, 6)]).logprobs[0]
    assert score.token_ids.tolist() == sequence.output == [score.top_token_ids[0, 0]]
    assert score.top_logprobs.shape == (1, 4)
    assert score.logprobs[0] == score.top_logprobs[0, 0] < 0


def test_bf16_runs_and_claims_nothing(folder):
    backend = CpuBackend(told(folder, precision="bf16"))
    assert (backend.info.precision, backend.info.batch_invariant) == ("bf16", False)
    driver = Driver(backend)
    sequence = driver.add(prompt_of(20))
    driver.generate([sequence], num_tokens=4)
    assert len(sequence.output) == 4


def test_batch_invariant_starts_only_where_the_promise_holds(folder, monkeypatch):
    """On a processor whose float32 products depend on the batch tiles step in; where those do too nothing is started."""
    broken = lambda self, x: torch.nn.functional.linear(x, self._weight) + x.roll(1, 0).sum(1, keepdim=True) * 1e-6  # noqa: E731
    monkeypatch.setattr(float_linear.PackedLinear, "__init__", float_linear.TiledLinear.__init__)
    monkeypatch.setattr(float_linear.PackedLinear, "__call__", broken)
    monkeypatch.setattr(probe, "PackedLinear", lambda weight, bias, *, max_rows: float_linear.PackedLinear(weight, bias))
    assert CpuBackend(told(folder, batch_invariant=True)).info.batch_invariant
    monkeypatch.setattr(float_linear.TiledLinear, "__call__", broken)
    assert not CpuBackend(told(folder)).info.batch_invariant
    with pytest.raises(ModelError, match="batch_invariant is set, and f32 products"):
        CpuBackend(told(folder, batch_invariant=True))
    with pytest.raises(ModelError, match="precision bf16 and batch_invariant"):
        CpuBackend(told(folder, batch_invariant=True, precision="bf16"))


def test_a_closed_backend_runs_nothing(folder):
    backend = CpuBackend(told(folder))
    driver = Driver(backend)
    batch = driver.batch([(driver.add([3, 4]), 2)])
    backend.close()
    backend.close()
    with pytest.raises(RuntimeError, match="closed"):
        backend.forward(batch)
