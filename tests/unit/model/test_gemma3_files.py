"""Gemma 3 as files say it: folders of transformers 5 and before, GGUF, and every refusal by name."""

import dataclasses
import json

import gguf
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from executor_svc.model.config import RopeConfig, expected_tensors
from executor_svc.model.errors import ModelError, UnsupportedModel
from executor_svc.model.gguf_file import GgufFile
from executor_svc.model.gguf_reader import GgufReader
from executor_svc.model.hf_folder import HfFolder
from executor_svc.model.source import check_tensors
from tests.support import tiny_models

LAYERS, HEADS, KV_HEADS, DIM = 7, 4, 2, 32


@pytest.fixture(scope="module")
def model():
    """Scores scaled by the head size, as GGUF files mean it."""
    return tiny_models.make(tiny_models.gemma3_config(query_pre_attn_scalar=DIM))


@pytest.fixture
def folder(model, tmp_path):
    return tiny_models.save(model, tmp_path / "tiny")


def write_gguf(path, state: dict[str, torch.Tensor], *, kind: str = "F32", **more: object) -> None:
    """As llama.cpp's conversion: norm weights with their 1, no reordering of q and k, no head of its own."""
    names, writer = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, LAYERS), gguf.GGUFWriter(path, "gemma3")
    numbers = {"block_count": LAYERS, "context_length": 512, "embedding_length": 72, "feed_forward_length": 96}
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": DIM}
    numbers |= {"attention.sliding_window": tiny_models.GEMMA3_WINDOW, **more}
    for key, value in numbers.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"gemma3.{key}", value)
    writer.add_float32("gemma3.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("gemma3.rope.freq_base", 1e6)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_float32("gemma3.rope.scaling.factor", 2.0)
    letters = sorted(ByteLevel.alphabet())
    writer.add_token_list([*letters, *(f"<x{i}>" for i in range(tiny_models.VOCAB_SIZE - len(letters)))])
    for name, tensor in state.items():
        if name != "lm_head.weight":
            array = (tensor + 1 if name.endswith("norm.weight") else tensor).numpy()
            want = gguf.GGMLQuantizationType[kind if array.ndim == 2 and array.shape[1] % 32 == 0 else "F32"]
            writer.add_tensor(names.get_name(name, (".weight",)), gguf.quantize(array, want), raw_dtype=want)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_the_folder_it_was_made_from(model, folder, tmp_path):
    """Configuration and every tensor; the norms have their 1 in both."""
    write_gguf(tmp_path / "tiny.gguf", model.state_dict())
    ours, theirs = GgufFile(tmp_path / "tiny.gguf"), HfFolder(folder)
    assert ours.config == dataclasses.replace(theirs.config, rms_eps=ours.config.rms_eps)
    assert ours.config.rms_eps == pytest.approx(theirs.config.rms_eps)
    for source in (ours, theirs):
        check_tensors(source.shapes(), need=expected_tensors(source.config))
    for name in expected_tensors(ours.config):
        assert np.array_equal(ours.load(name), theirs.load(name)), name
    name = "model.layers.3.post_feedforward_layernorm.weight"
    assert np.array_equal(theirs.load(name), 1 + model.state_dict()[name])


def test_the_configuration_is_that_of_the_checkpoint(folder):
    config, window = HfFolder(folder).config, tiny_models.GEMMA3_WINDOW
    assert config.windows == (window, window, window, window, window, 0, window)
    assert config.local_rope == RopeConfig(theta=10000.0)
    assert config.rope == RopeConfig(theta=1000000.0, kind="linear", factor=2.0)
    assert (config.head_dim, config.query_scalar, config.tied, config.sandwich) == (32, 32.0, True, True)
    assert config.embedding_scale == pytest.approx(72**0.5)


def test_a_folder_older_than_transformers_5_means_the_same(folder):
    """Flat rotary settings, a number for the pattern, no word about the tied head."""
    want = HfFolder(folder).config
    told = json.loads((folder / "config.json").read_text())
    for key in ("rope_parameters", "layer_types", "tie_word_embeddings", "_sliding_window_pattern"):
        del told[key]
    scaling = {"factor": 2.0, "rope_type": "linear"}
    told |= {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": scaling, "sliding_window_pattern": 6}
    (folder / "config.json").write_text(json.dumps(told))
    assert HfFolder(folder).config == want


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"hidden_activation": "gelu"}, "hidden_activation"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attention_bias": True}, "attention_bias"),
        ({"layer_types": ["sliding_attention"] * 6 + ["linear_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 6}, "layer_types are not 7"),
        ({"sliding_window": None}, "the window has 0 tokens"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "Gemma3ForConditionalGeneration"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(folder, change, word):
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**told, **change}))
    with pytest.raises(ModelError, match=word):
        HfFolder(folder)


def test_a_gguf_file_with_capped_logits_is_refused_by_name(model, tmp_path):
    write_gguf(tmp_path / "tiny.gguf", model.state_dict(), final_logit_softcapping=30.0)
    with pytest.raises(UnsupportedModel, match="final_logit_softcapping = 30"):
        GgufFile(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_read_as_float32(tmp_path, kind):
    """Real Gemma GGUF files hold them; no kernel takes their groups, so they become floats."""
    want = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "gemma3")
    block = gguf.GGML_QUANT_SIZES[want][1]
    packed = (torch.arange(4 * block) % 61).to(torch.uint8).reshape(4, block).numpy()
    writer.add_tensor("token_embd.weight", packed, raw_dtype=want)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours = GgufReader(tmp_path / "k.gguf").dequantised("token_embd.weight")
    assert ours.shape == (4, 256)
    assert (ours == gguf.dequantize(packed, want)).all()
