"""Reading models: GGUF against the gguf package's own reader, folders against transformers, and every refusal by name."""

import copy
import json
import re
import struct

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig

from executor_svc.model.config import ModelConfig, RopeConfig, expected_tensors
from executor_svc.model.errors import ModelError, TensorMismatch, UnsupportedModel
from executor_svc.model.gguf_file import GgufFile
from executor_svc.model.gguf_reader import GgufReader
from executor_svc.model.hf_folder import HfFolder
from executor_svc.model.load import default_model, open_model
from executor_svc.model.precision import choose_precision
from executor_svc.model.rope import rope_tables
from executor_svc.model.source import check_tensors
from executor_svc.model.weights import load_weights
from tests.support import tiny_models

HEADS, KV_HEADS = 4, 2


def load_all(source, config: ModelConfig) -> dict[str, torch.Tensor]:
    check_tensors(source.shapes(), need=expected_tensors(config))
    return {name: torch.from_numpy(source.load(name)) for name in expected_tensors(config)}


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make(tiny_models.configs()["llama"])


@pytest.fixture
def folder(llama, tmp_path):
    return tiny_models.save(llama, tmp_path / "tiny")


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """What llama.cpp's conversion does to q and k of a Llama."""
    return weight.view(heads, 2, weight.shape[0] // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def write_gguf(path, state: dict[str, torch.Tensor], *, arch="llama", kind="F32", leave_out=(), divisors=None) -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3)
    writer = gguf.GGUFWriter(path, arch)
    numbers = {"block_count": 3, "context_length": 512, "embedding_length": 64, "feed_forward_length": 96}
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    for key, value in numbers.items():
        writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
    letters = sorted(ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<s>", "</s>", *letters, *(f"<x{i}>" for i in range(tiny_models.VOCAB_SIZE - 2 - len(letters)))])
    writer.add_eos_token_id(1)
    for name, tensor in state.items():
        if name in leave_out:
            continue
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
        array = (permuted(tensor, heads) if heads else tensor).numpy()
        want = gguf.GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
        packed = gguf.quantize(np.ascontiguousarray(array), want)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), packed, raw_dtype=want)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_folder_gives_the_weights_of_transformers(llama, folder):
    opened = open_model(folder)
    state = llama.state_dict()
    for name, tensor in load_all(opened.source, opened.config).items():
        assert torch.equal(tensor, state[name]), name
    assert (opened.text.eos_token_ids, opened.text.num_ids) == ((1,), tiny_models.VOCAB_SIZE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_folders_become_float32(llama, tmp_path, dtype):
    folder = tiny_models.save(copy.deepcopy(llama).to(dtype), tmp_path / "half")
    opened = open_model(folder)
    tensors = load_all(opened.source, opened.config)
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert torch.equal(tensors["model.norm.weight"], llama.state_dict()["model.norm.weight"].to(dtype).float())


def test_sharded_folder_equals_one_file(llama, folder, tmp_path):
    sharded = tiny_models.save(llama, tmp_path / "sharded", max_shard_size="60KB")
    assert (sharded / "model.safetensors.index.json").exists()
    one, many = open_model(folder), open_model(sharded)
    assert len(HfFolder(sharded).weight_files) > 2
    for name, tensor in load_all(one.source, one.config).items():
        assert np.array_equal(tensor, many.source.load(name))


def test_gguf_undoes_the_permutation(llama, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama.state_dict())
    file = GgufFile(path)
    for name, tensor in load_all(file, file.config).items():
        assert torch.equal(tensor, llama.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_gguf_equals_the_gguf_package(llama, tmp_path, kind):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama.state_dict(), kind=kind)
    ours = GgufReader(path)
    for tensor in gguf.GGUFReader(path).tensors:
        assert np.array_equal(ours.dequantised(tensor.name), gguf.dequantize(tensor.data, tensor.tensor_type)), tensor.name


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_groups_of_integers_are_read_as_they_are(llama, tmp_path, kind):
    """Dequantised, they are the gguf package's values, in our order of rows."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama.state_dict(), kind=kind)
    file = GgufFile(path)
    names = [name for name in expected_tensors(file.config) if file.has_groups(name)]
    assert len(names) >= 7
    for name in names:
        np.testing.assert_array_equal(file.groups(name).dequantised(), file.load(name), err_msg=name)


def test_other_tensors_have_no_groups(llama, folder, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama.state_dict(), kind="Q5_0")
    for source in (GgufFile(path), HfFolder(folder)):
        for name in expected_tensors(source.config):
            assert not source.has_groups(name)
            assert source.groups(name) is None


def test_default_model_metadata_equals_the_gguf_package():
    ours, theirs = GgufReader(default_model()), gguf.GGUFReader(default_model())
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key


def test_gguf_rope_divisors_are_read(llama, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama.state_dict(), divisors=torch.linspace(1, 8, 8))
    config = GgufFile(path).config
    assert config.rope.divisors == tuple(range(1, 9))
    assert "rope_freqs.weight" not in GgufFile(path).shapes()


def test_digest_depends_on_content_only(llama, folder, tmp_path):
    moved = tiny_models.save(llama, tmp_path / "elsewhere")
    assert open_model(folder).digest == open_model(moved).digest
    state = load_file(moved / "model.safetensors")
    state["model.norm.weight"][0] += 1
    save_file(state, moved / "model.safetensors", metadata={"format": "pt"})
    assert open_model(folder).digest != open_model(moved).digest


def test_a_missing_tensor_is_named(llama, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama.state_dict(), leave_out=("model.layers.1.mlp.up_proj.weight",))
    file = GgufFile(path)
    with pytest.raises(TensorMismatch, match=r"model\.layers\.1\.mlp\.up_proj\.weight.*missing"):
        check_tensors(file.shapes(), need=expected_tensors(file.config))


@pytest.mark.parametrize("precision", ["auto", "int8", "int8-groups", "f32"])
def test_a_missing_tensor_is_named_whatever_the_precision(llama, tmp_path, precision):
    """The precision is chosen before the tensors are checked: a matrix that is not there must not end that choice."""
    path, name = tmp_path / "tiny.gguf", "model.layers.1.mlp.up_proj.weight"
    write_gguf(path, llama.state_dict(), kind="Q8_0", leave_out=(name,))
    file = GgufFile(path)
    chosen = choose_precision(precision, config=file.config, source=file)
    with pytest.raises(TensorMismatch, match=f"{re.escape(name)}.*missing"):
        load_weights(file, config=file.config, num_ids=8, precision=chosen)


@pytest.mark.parametrize(("precision", "place"), [("int8", "output 3: "), ("int8-groups", "output 3, inputs 0 to 31")])
def test_a_weight_that_integers_cannot_hold_is_named(folder, precision, place):
    path, name = folder / "model.safetensors", "model.layers.1.mlp.down_proj.weight"
    state = load_file(path)
    state[name][3, 5] = np.nan
    save_file(state, path)
    source = HfFolder(folder)
    chosen = choose_precision(precision, config=source.config, source=source)
    with pytest.raises(ModelError, match=f"{re.escape(name)}: {place}"):
        load_weights(source, config=source.config, num_ids=source.config.vocab_size, precision=chosen)


def test_an_extra_tensor_and_a_wrong_shape_are_named(folder):
    state = load_file(folder / "model.safetensors")
    save_file({**state, "model.layers.0.self_attn.q_norm.weight": torch.ones(16)}, folder / "model.safetensors")
    source = HfFolder(folder)
    with pytest.raises(TensorMismatch, match=r"layers\.0\.self_attn\.q_norm\.weight"):
        check_tensors(source.shapes(), need=expected_tensors(source.config))
    save_file({**state, "model.norm.weight": torch.ones(63)}, folder / "model.safetensors")
    source = HfFolder(folder)
    with pytest.raises(TensorMismatch, match=r"model\.norm\.weight.*63"):
        check_tensors(source.shapes(), need=expected_tensors(source.config))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None}, "none named"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_named(folder, change, name):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=name):
        HfFolder(folder)


def test_unknown_rope_scaling_is_named():
    with pytest.raises(UnsupportedModel, match="yarn"):
        rope_tables(RopeConfig(theta=1e4, kind="yarn"), head_dim=16, num_positions=4)


def test_b093_pickled_weights_are_never_opened(folder):
    """Only safetensors are read: a folder with nothing but pytorch_model.bin is refused, and the file stays closed."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(ModelError, match="safetensors"):
        HfFolder(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd"])
def test_an_index_cannot_point_outside_its_folder(folder, name):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ModelError, match="outside"):
        HfFolder(folder)


def test_a_cut_or_foreign_file_is_refused(llama, folder, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama.state_dict())
    whole = path.read_bytes()
    for content in (b"", b"not a model at all, but long enough", whole[:100], whole[:5000], whole[: len(whole) - 4096]):
        path.write_bytes(content)
        with pytest.raises(ModelError):
            GgufFile(path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="not a whole safetensors"):
        HfFolder(folder)
    with pytest.raises(ModelError, match="no model file"):
        open_model(tmp_path / "absent.gguf")


def test_lengths_in_a_header_are_not_believed(tmp_path):
    """A file that declares 2**60 values, a string longer than itself or a nested array is refused at once, taking no memory."""
    start = struct.pack("<IIQQ", 0x46554747, 3, 0, 1)
    key = struct.pack("<Q", 1) + b"k"
    for rest in (
        key + struct.pack("<IIQ", 9, 4, 2**60),
        key + struct.pack("<IIQ", 9, 8, 2**60),
        key + struct.pack("<IQ", 8, 2**62),
        key + struct.pack("<IIQIQ", 9, 9, 1, 4, 1),
        key + struct.pack("<I", 77),
        struct.pack("<Q", 2**63),
    ):
        path = tmp_path / "bad.gguf"
        path.write_bytes(start + rest)
        with pytest.raises(ModelError):
            GgufReader(path)


def test_unknown_gguf_architecture_is_named(llama, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama.state_dict(), arch="gemma2")
    with pytest.raises(UnsupportedModel, match="gemma2"):
        GgufFile(path)


def test_llama_without_a_head_is_tied(tmp_path):
    model = tiny_models.make(LlamaConfig(**{**tiny_models._shape(), "tie_word_embeddings": True}))
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model.state_dict(), leave_out=("lm_head.weight",))
    assert GgufFile(path).config.tied
