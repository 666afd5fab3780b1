"""Tiny random checkpoints of every family, made by transformers, which is also their oracle."""

from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from executor_svc.model.tokenizer_gguf import build_tokenizer

VOCAB_SIZE = 272
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 2.0},
}
GEMMA3_WINDOW = 32


def _shape(**more: object) -> dict[str, object]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **more,
    }


def configs() -> dict[str, PreTrainedConfig]:
    """Name -> configuration of one checkpoint for each thing that a family can do."""
    return {
        "llama": LlamaConfig(**_shape()),
        "llama-tied": LlamaConfig(**_shape(tie_word_embeddings=True)),
        "llama-mha-odd": LlamaConfig(**_shape(hidden_size=60, num_attention_heads=3, num_key_value_heads=3, intermediate_size=100)),
        "llama3-rope": LlamaConfig(**_shape(rope_parameters=LLAMA3)),
        "linear-rope": LlamaConfig(**_shape(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})),
        "mistral": MistralConfig(**_shape(sliding_window=24, head_dim=16)),
        "mistral-whole": MistralConfig(**_shape(sliding_window=None)),
        "qwen2": Qwen2Config(**_shape()),
        "qwen2-sliding": Qwen2Config(**_shape(use_sliding_window=True, sliding_window=20, max_window_layers=1)),
        "qwen3": Qwen3Config(**_shape(head_dim=32)),
        "gemma3": gemma3_config(),
        "glm4-moe": glm4_moe_config(),
        "glm4-moe-groups": glm4_moe_config(n_group=4, topk_group=2, norm_topk_prob=False, use_qk_norm=False, attention_bias=True),
        "qwen3-tied": Qwen3Config(**_shape(head_dim=16, tie_word_embeddings=True)),
    }


def glm4_moe_config(**more: object) -> Glm4MoeConfig:
    """One dense layer, then eight experts of which a token goes through three and two shared ones."""
    told = {
        "head_dim": 32, "partial_rotary_factor": 0.5, "use_qk_norm": True, "moe_intermediate_size": 48, "n_routed_experts": 8,
        "n_shared_experts": 2, "num_experts_per_tok": 3, "routed_scaling_factor": 1.7, "first_k_dense_replace": 1,
    }  # fmt: skip
    return Glm4MoeConfig(**_shape(**{**told, **more}))


def gemma3_config(**more: object) -> Gemma3TextConfig:
    """Five layers that slide, one that does not, and one more; heads of another size than hidden / heads and another scale."""
    told = {"hidden_size": 72, "num_hidden_layers": 7, "head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": GEMMA3_WINDOW}
    return Gemma3TextConfig(**_shape(**{**told, "rope_parameters": GEMMA3_ROPE, **more}))


def make(config: PreTrainedConfig, *, seed: int = 3) -> PreTrainedModel:
    """A model with random weights, norms and biases included, so that leaving one out shows."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").train(mode=False)
    lacks = 1.0 if config.model_type == "gemma3_text" else 0.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5 - lacks, 1.5 - lacks)
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.2)
    return model


def save(model: PreTrainedModel, folder: Path, **options: object) -> Path:
    """Writes config.json, safetensors and a byte-level tokenizer.json with as many ids as the model has."""
    model.save_pretrained(folder, **options)
    letters = sorted(ByteLevel.alphabet())
    tokens = ["<s>", "</s>", *letters, *(f"<extra{i}>" for i in range(VOCAB_SIZE - 2 - len(letters)))]
    types = [3, 3, *[1] * len(letters), *[3] * (VOCAB_SIZE - 2 - len(letters))]
    build_tokenizer(tokens, token_types=types, merges=[], model="gpt2", pre="gpt-2").save(str(folder / "tokenizer.json"))
    return folder
