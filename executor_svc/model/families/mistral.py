"""Mistral 7B: Llama with a sliding window on every layer. Its GGUF files call themselves llama."""

from collections.abc import Mapping
from typing import Any

from executor_svc.model.families.base import Family


def _windows(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    return (int(config.get("sliding_window") or 0),) * num_layers


MISTRAL = Family(name="mistral", hf_architectures=("MistralForCausalLM",), gguf_architectures=(), windows=_windows)
