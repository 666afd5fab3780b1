"""Qwen2 and 2.5 (bias on q, k, v) and Qwen3 dense (norms on q and k instead)."""

from collections.abc import Mapping
from typing import Any

from executor_svc.model.families.base import Family


def _windows(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Qwen lists which layers slide, or slides from layer `max_window_layers` up; neither counts unless it says so."""
    if not config.get("use_sliding_window") or not config.get("sliding_window"):
        return (0,) * num_layers
    window = int(config["sliding_window"])
    if layer_types := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else 0 for kind in layer_types)
    first = int(config.get("max_window_layers", num_layers))
    return tuple(window if index >= first else 0 for index in range(num_layers))


QWEN2 = Family(name="qwen2", hf_architectures=("Qwen2ForCausalLM",), gguf_architectures=("qwen2",), qkv_bias=True, windows=_windows)
QWEN3 = Family(name="qwen3", hf_architectures=("Qwen3ForCausalLM",), gguf_architectures=("qwen3",), qk_norm=True, windows=_windows)
