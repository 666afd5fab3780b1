"""Reading a GGUF file: configuration, metadata and tensors, dequantised to float32."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from executor_svc.model.config import ModelConfig, RopeConfig
from executor_svc.model.errors import ModelError, UnsupportedModel
from executor_svc.model.families import by_gguf_architecture
from executor_svc.model.families.base import Family
from executor_svc.model.gguf_groups import GROUP_KINDS, group_weights
from executor_svc.model.gguf_reader import GgufReader
from kernels.group_weights import GroupWeights
from kernels.layout import F32

_TOP: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_DIVISORS: Final = "rope_freqs.weight"


class GgufFile:
    """One GGUF file. A TensorSource; also gives the configuration and the metadata, which the tokenizer is made from."""

    def __init__(self, path: Path) -> None:
        """Reads the header; raises ModelError when it is no GGUF file, UnsupportedModel when it holds another kind of model."""
        self._reader = GgufReader(path)
        self.family: Family = by_gguf_architecture(str(self.get("general.architecture", "none named")))
        self._names = {_hf_name(name, {**_LAYER, **self.family.gguf_names}): name for name in self._reader.tensors}
        self.config: ModelConfig = self._read_config()

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value as plain Python data."""
        return self._reader.metadata.get(key, default)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """As TensorSource."""
        return {name: self._reader.tensors[own].shape for name, own in self._names.items() if name != _ROPE_DIVISORS}

    def load(self, name: str) -> F32:
        """As TensorSource."""
        array = self._reader.dequantised(self._names[name])
        rows = self._row_order(name)
        return np.ascontiguousarray(array if rows is None else array[rows])

    def has_groups(self, name: str) -> bool:
        """As TensorSource; a tensor that is missing is nothing in particular here, `check_tensors` names it."""
        return name in self._names and self._reader.tensors[self._names[name]].kind in GROUP_KINDS

    def groups(self, name: str) -> GroupWeights | None:
        """As TensorSource."""
        own = self._names[name]
        weights = group_weights(self._reader.raw(own), self._reader.tensors[own].kind)
        rows = self._row_order(name)
        return weights if weights is None or rows is None else weights.picked(rows)

    def _row_order(self, name: str) -> NDArray[np.intp] | None:
        """Rows of q and k lie as pairs (i, i + D/2) interleaved; this order gives the two halves that our rotation expects."""
        heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}.get(name.split(".")[-2])
        if heads is None or not self.family.gguf_permuted:
            return None
        return np.arange(heads * self.config.head_dim).reshape(heads, self.config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)

    def _read_config(self) -> ModelConfig:
        prefix = str(self.get("general.architecture"))

        def number(key: str, default: float | None = None) -> float:
            value = self.get(f"{prefix}.{key}", default)
            if not isinstance(value, int | float):
                raise ModelError(f"metadata {prefix}.{key} is missing or not a number")
            return value

        hidden, heads = int(number("embedding_length")), int(number("attention.head_count"))
        num_layers, head_dim = int(number("block_count")), int(number("attention.key_length", hidden // heads))
        if number("rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedModel("rotary embedding over a part of a head is not supported")
        config = ModelConfig(
            family=self.family.name,
            num_layers=num_layers,
            hidden_size=hidden,
            intermediate_size=int(number("feed_forward_length")),
            num_heads=heads,
            num_kv_heads=int(number("attention.head_count_kv", heads)),
            head_dim=head_dim,
            vocab_size=len(self.get("tokenizer.ggml.tokens", [])),
            max_position=int(number("context_length")),
            rms_eps=number("attention.layer_norm_rms_epsilon"),
            rope=self._rope(prefix, theta=number("rope.freq_base", 10000.0), factor=number("rope.scaling.factor", 1.0)),
            windows=(int(number("attention.sliding_window", 0)),) * num_layers,
            tied="lm_head.weight" not in self._names,
            qkv_bias=self.family.qkv_bias,
            qk_norm=self.family.qk_norm,
        )
        metadata = self._reader.metadata.items()
        return self.family.refine_gguf(
            config, {key.removeprefix(f"{prefix}."): value for key, value in metadata if key.startswith(f"{prefix}.")}
        )

    def _rope(self, prefix: str, *, theta: float, factor: float) -> RopeConfig:
        if _ROPE_DIVISORS in self._names:
            return RopeConfig(theta=theta, divisors=tuple(self._reader.dequantised(_ROPE_DIVISORS).tolist()))
        kind = str(self.get(f"{prefix}.rope.scaling.type", "none"))
        return RopeConfig(theta=theta, kind="default" if kind == "none" else kind, factor=factor)


def _hf_name(name: str, parts: Mapping[str, str]) -> str:
    """The Hugging Face name of a GGUF tensor; one that has none keeps its own and is then reported as left over."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        index, part, kind = match.groups()
        return f"model.layers.{index}.{parts[part]}.{kind}" if part in parts else name
    stem, _, kind = name.rpartition(".")
    return f"{_TOP[stem]}.{kind}" if stem in _TOP else name
