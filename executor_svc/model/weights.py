"""A model's weights as the forward pass uses them: fused, packed, in float32 unless a layer decided otherwise."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor_svc.model.config import ModelConfig, MoeConfig, expected_tensors
from executor_svc.model.errors import ModelError
from executor_svc.model.experts import Expert, Experts
from executor_svc.model.linear import Linear, MakeLinear
from executor_svc.model.precision import Precision
from executor_svc.model.source import TensorSource, check_tensors
from kernels.group_weights import GroupWeights, side_by_side
from kernels.layout import F32

LAYERS_AT_ONCE: Final = 4
"""Layers that are made at the same time at most: each needs memory for its tensors before and after."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    Attributes:
        input_norm, post_norm: before attention and before the feed-forward part, f32 [hidden].
        q_norm, k_norm: f32 [head_dim] or None.
        attention_norm, gated_norm: of what attention and the feed-forward part give, f32 [hidden] or None.
        qkv: hidden -> queries, keys, values, side by side. gate_up: hidden -> gate, up, side by side.
        window: tokens that a token sees, itself included; 0 = all.
        experts: what is added to the feed-forward part, which every token goes through; None = nothing.
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
    attention_norm: F32 | None = None
    gated_norm: F32 | None = None
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The whole decoder.

    Attributes:
        embedding: f32 [vocab, hidden].
        head: gives logits of the first `num_ids` tokens only.
        pad_rows: the number of rows that its layers want a batch of so many padded to.
    """

    embedding: F32
    layers: tuple[LayerWeights, ...]
    norm: F32
    head: Linear
    pad_rows: Callable[[int], int]


def load_weights(
    source: TensorSource, *, config: ModelConfig, num_ids: int, precision: Precision, num_threads: int = 1
) -> ModelWeights:
    """Reads every tensor; raises TensorMismatch before reading any when names or shapes are not those of `config`.

    Rows of the head behind `num_ids` are padding that no tokenizer knows: they are cut off, so that such an id can never be chosen.
    Integers are made on `num_threads`; layers in floats are made one after the other, for each new shape is probed.
    """
    check_tensors(source.shapes(), need=expected_tensors(config))
    with ThreadPoolExecutor(min(num_threads, LAYERS_AT_ONCE) if precision.integers else 1) as pool:
        embedded = pool.submit(source.load, "model.embed_tokens.weight")
        make_layer = partial(load_layer, source, config=config, precision=precision)
        layers = tuple(pool.map(make_layer, range(config.num_layers)))
        embedding = embedded.result()
    return ModelWeights(
        embedding=embedding,
        layers=layers,
        norm=source.load("model.norm.weight"),
        head=load_head(source, config=config, ids=slice(num_ids), embedding=embedding, precision=precision),
        pad_rows=precision.pad_rows,
    )


def load_head(
    source: TensorSource, *, config: ModelConfig, ids: slice | NDArray[np.intp], embedding: F32, precision: Precision
) -> Linear:
    """Hidden states -> logits of some token ids, in their order."""
    name = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    if precision.make_groups is not None and (groups := source.groups(name)) is not None:
        return precision.make_groups(groups.picked(ids), None)
    return _made(precision.make_head, (embedding if config.tied else source.load(name))[ids], None, named=name)


def load_layer(source: TensorSource, index: int, *, config: ModelConfig, precision: Precision) -> LayerWeights:
    """One decoder layer by its number in the file."""
    prefix = f"model.layers.{index}."

    def load(name: str) -> F32:
        return source.load(prefix + name)

    def norm(name: str) -> F32:
        return load(f"{name}.weight")

    def linear(*names: str, bias: F32 | None = None) -> Linear:
        """One layer with the outputs of all `names`."""
        weights = [f"{prefix}{name}.weight" for name in names]
        if precision.make_groups is not None and (groups := _groups(source, weights)) is not None:
            return precision.make_groups(groups, bias)
        return _made(precision.make, np.concatenate([source.load(name) for name in weights]), bias, named=", ".join(weights))

    def experts(moe: MoeConfig) -> Experts:
        names = [f"mlp.experts.{number}" for number in range(moe.num_experts)]
        made = [Expert(linear(f"{name}.gate_proj", f"{name}.up_proj"), linear(f"{name}.down_proj")) for name in names]
        router, bias = load("mlp.gate.weight"), load("mlp.gate.e_score_correction_bias")
        return Experts(made, router=router, bias=bias, config=moe, pad_rows=precision.pad_rows)

    moe = config.moe if config.moe is not None and index >= config.moe.first_layer else None
    always = "mlp" if moe is None else "mlp.shared_experts"
    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    bias = np.concatenate([load(f"{name}.bias") for name in qkv]) if config.qkv_bias else None
    return LayerWeights(
        input_norm=norm("input_layernorm"),
        qkv=linear(*qkv, bias=bias),
        q_norm=norm("self_attn.q_norm") if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm") if config.qk_norm else None,
        out=linear("self_attn.o_proj"),
        post_norm=norm("pre_feedforward_layernorm" if config.sandwich else "post_attention_layernorm"),
        gate_up=linear(f"{always}.gate_proj", f"{always}.up_proj"),
        down=linear(f"{always}.down_proj"),
        window=config.windows[index],
        attention_norm=norm("post_attention_layernorm") if config.sandwich else None,
        gated_norm=norm("post_feedforward_layernorm") if config.sandwich else None,
        experts=experts(moe) if moe is not None else None,
    )


def _made(make: MakeLinear, weight: F32, bias: F32 | None, *, named: str) -> Linear:
    """The layer; a weight that its arithmetic cannot hold is a ModelError that names the tensors."""
    try:
        return make(weight, bias)
    except ValueError as error:
        raise ModelError(f"{named}: {error}") from error


def _groups(source: TensorSource, names: Sequence[str]) -> GroupWeights | None:
    """The matrices side by side, None unless the file holds all of them in groups of the same kind."""
    parts = [groups for name in names if (groups := source.groups(name)) is not None]
    return side_by_side(parts) if len(parts) == len(names) else None
