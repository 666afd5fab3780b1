"""A model's weights as the forward pass uses them: fused, packed, in float32 unless a layer decided otherwise."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.model.config import ModelConfig, expected_tensors
from executor_svc.model.linear import Linear, MakeLinear
from executor_svc.model.source import TensorSource, check_tensors

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    Attributes:
        input_norm, post_norm: f32 [hidden]. q_norm, k_norm: f32 [head_dim] or None.
        qkv: hidden -> queries, keys, values, side by side. gate_up: hidden -> gate, up, side by side.
        window: tokens that a token sees, itself included; 0 = all.
    """

    input_norm: F32
    qkv: Linear
    q_norm: F32 | None
    k_norm: F32 | None
    out: Linear
    post_norm: F32
    gate_up: Linear
    down: Linear
    window: int


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The whole decoder. `embedding`: f32 [vocab, hidden]; `head` gives logits of the first `num_ids` tokens only."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: F32
    head: Linear


def load_weights(
    source: TensorSource, *, config: ModelConfig, num_ids: int, make: MakeLinear, make_head: MakeLinear
) -> ModelWeights:
    """Reads every tensor once; raises TensorMismatch before reading any when names or shapes are not those of `config`.

    Rows of the head behind `num_ids` are padding that no tokenizer knows: they are cut off, so that such an id can never be chosen.
    """
    check_tensors(source.shapes(), need=expected_tensors(config))
    embedding = source.load("model.embed_tokens.weight")
    head = embedding if config.tied else source.load("lm_head.weight")
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_load_layer(source, config=config, index=index, make=make) for index in range(config.num_layers)),
        norm=_array(source.load("model.norm.weight")),
        head=make_head(head[:num_ids], None),
    )


def _load_layer(source: TensorSource, *, config: ModelConfig, index: int, make: MakeLinear) -> LayerWeights:
    prefix = f"model.layers.{index}."

    def load(name: str) -> torch.Tensor:
        return source.load(prefix + name)

    def fused(*names: str) -> torch.Tensor:
        return torch.cat([load(name) for name in names])

    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    bias = fused(*(f"{name}.bias" for name in qkv)) if config.qkv_bias else None
    return LayerWeights(
        input_norm=_array(load("input_layernorm.weight")),
        qkv=make(fused(*(f"{name}.weight" for name in qkv)), bias),
        q_norm=_array(load("self_attn.q_norm.weight")) if config.qk_norm else None,
        k_norm=_array(load("self_attn.k_norm.weight")) if config.qk_norm else None,
        out=make(load("self_attn.o_proj.weight"), None),
        post_norm=_array(load("post_attention_layernorm.weight")),
        gate_up=make(fused("mlp.gate_proj.weight", "mlp.up_proj.weight"), None),
        down=make(load("mlp.down_proj.weight"), None),
        window=config.windows[index],
    )


def _array(tensor: torch.Tensor) -> F32:
    """The tensor's memory as a NumPy array."""
    array: F32 = tensor.numpy()
    return array
