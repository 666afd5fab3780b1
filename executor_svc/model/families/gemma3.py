"""Gemma 3, text only: five layers that slide for each that sees everything, norms before and behind each part, GELU gates.

Sources: `Gemma3TextConfig` and `modeling_gemma3` of transformers; for GGUF, llama.cpp's conversion and its `gemma3` graph.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from executor_svc.model.config import ModelConfig, RopeConfig
from executor_svc.model.errors import ModelError, UnsupportedModel
from executor_svc.model.families.base import Family
from executor_svc.model.hf_rope import read_rope

_PATTERN: Final = 6
"""Every sixth layer sees the whole context."""
_LOCAL_THETA: Final = 10000.0
_GLOBAL_THETA: Final = 1000000.0
_LAYERS_OF_27B: Final = 62
"""The one size whose scores are not scaled by the head size; GGUF files do not say so."""
_KINDS: Final = ("sliding_attention", "full_attention")


def _refine(config: ModelConfig, *, slides: Sequence[bool], window: int) -> ModelConfig:
    """What both file formats mean alike."""
    if any(slides) and window < 1:
        raise ModelError(f"layers slide, but the window has {window} tokens")
    return dataclasses.replace(
        config,
        windows=tuple(window if slide else 0 for slide in slides),
        sandwich=True,
        activation="gelu_tanh",
        embedding_scale=config.hidden_size**0.5,
        rolling=True,
    )


def _by_pattern(pattern: int, num_layers: int) -> list[bool]:
    return [bool((index + 1) % pattern) for index in range(num_layers)]


def _refine_hf(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    kinds = raw.get("layer_types")
    if kinds is not None and (len(kinds) != config.num_layers or set(kinds) - set(_KINDS)):
        raise UnsupportedModel(f"config.json: layer_types are not {config.num_layers} of {' and '.join(_KINDS)}")
    slides = [kind == _KINDS[0] for kind in kinds] if kinds else _by_pattern(int(raw["sliding_window_pattern"]), config.num_layers)
    whole = _refine(config, slides=slides, window=int(raw.get("sliding_window") or 0))
    local, everywhere = _ropes(raw)
    return dataclasses.replace(whole, rope=everywhere, local_rope=local, query_scalar=float(raw["query_pre_attn_scalar"]))


def _ropes(raw: Mapping[str, Any]) -> tuple[RopeConfig, RopeConfig]:
    """(of sliding layers, of the others): transformers 5 lists them by kind of layer, older files scale the second one only."""
    told = raw.get("rope_parameters") or {}
    local, everywhere = (dict(told.get(kind) or {}) for kind in _KINDS)
    if not told:
        local = {"rope_theta": raw.get("rope_local_base_freq", _LOCAL_THETA)}
        everywhere = {**(raw.get("rope_scaling") or {}), "rope_theta": raw.get("rope_theta", _GLOBAL_THETA)}
    return (
        read_rope({"rope_parameters": {"rope_theta": _LOCAL_THETA, **local}}),
        read_rope({"rope_parameters": {"rope_theta": _GLOBAL_THETA, **everywhere}}),
    )


def _refine_gguf(config: ModelConfig, metadata: Mapping[str, Any]) -> ModelConfig:
    """The pattern of layers and the local rotation are constants, as they are for llama.cpp, unless the file says them."""
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if metadata.get(key):
            raise UnsupportedModel(f"metadata {key} = {metadata[key]} is not supported")
    pattern = metadata.get("attention.sliding_window_pattern", _PATTERN)
    slides = [bool(slide) for slide in pattern] if isinstance(pattern, list) else _by_pattern(int(pattern), config.num_layers)
    if len(slides) != config.num_layers:
        raise ModelError(f"attention.sliding_window_pattern names {len(slides)} layers of {config.num_layers}")
    scalar = config.hidden_size / config.num_heads if config.num_layers == _LAYERS_OF_27B else config.head_dim
    return dataclasses.replace(
        _refine(config, slides=slides, window=int(metadata.get("attention.sliding_window", 0))),
        rope=dataclasses.replace(config.rope, theta=float(metadata.get("rope.freq_base", _GLOBAL_THETA))),
        local_rope=RopeConfig(theta=float(metadata.get("rope.freq_base_swa", _LOCAL_THETA))),
        query_scalar=scalar,
    )


GEMMA3 = Family(
    name="gemma3",
    hf_architectures=("Gemma3ForCausalLM",),
    gguf_architectures=("gemma3",),
    qk_norm=True,
    hf_defaults={
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": _PATTERN,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
    },
    hf_must={
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
    hf_norm_offset=1.0,
    gguf_names={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    refine_hf=_refine_hf,
    refine_gguf=_refine_gguf,
)
