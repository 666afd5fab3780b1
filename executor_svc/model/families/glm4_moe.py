"""GLM-4.5 and 4.6: grouped-query attention whose heads rotate in half, a mixture of experts behind the first layers.

Sources: `Glm4MoeConfig` and `modeling_glm4_moe` of transformers; the GLM-4.5 report, arXiv:2508.06471.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from executor_svc.model.config import ModelConfig, MoeConfig
from executor_svc.model.errors import ModelError
from executor_svc.model.families.base import Family

_HALF: Final = 0.5


def _refine_hf(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    moe = MoeConfig(
        first_layer=int(raw["first_k_dense_replace"]),
        num_experts=int(raw["n_routed_experts"]),
        num_chosen=int(raw["num_experts_per_tok"]),
        intermediate_size=int(raw["moe_intermediate_size"]),
        shared_size=int(raw["moe_intermediate_size"]) * int(raw["n_shared_experts"]),
        num_groups=int(raw["n_group"]),
        num_chosen_groups=int(raw["topk_group"]),
        normalise=bool(raw["norm_topk_prob"]),
        scale=float(raw["routed_scaling_factor"]),
    )
    _check(moe)
    told = raw.get("rope_parameters") or {}
    share = float(told.get("partial_rotary_factor", raw.get("partial_rotary_factor", _HALF)))
    turning = int(config.head_dim * share)
    if turning < 2 or turning > config.head_dim or turning % 2 or (config.head_dim - turning) % 2:
        raise ModelError(f"config.json: partial_rotary_factor {share:g} of heads of {config.head_dim} leaves {turning} to rotate")
    return dataclasses.replace(
        config,
        rope=dataclasses.replace(config.rope, rotary_dim=0 if turning == config.head_dim else turning),
        qkv_bias=bool(raw["attention_bias"]),
        qk_norm=bool(raw["use_qk_norm"]),
        moe=moe,
    )


def _check(moe: MoeConfig) -> None:
    """A router that cannot choose is refused here, not at the first token."""
    if moe.num_groups < 1 or moe.num_experts % moe.num_groups or moe.num_experts < 2 * moe.num_groups:
        raise ModelError(f"config.json: {moe.num_experts} experts do not make {moe.num_groups} groups of two or more (n_group)")
    if not 1 <= moe.num_chosen_groups <= moe.num_groups:
        raise ModelError(f"config.json: topk_group is {moe.num_chosen_groups} of {moe.num_groups} groups")
    most = moe.num_experts // moe.num_groups * moe.num_chosen_groups
    if not 1 <= moe.num_chosen <= most:
        raise ModelError(f"config.json: num_experts_per_tok is {moe.num_chosen}; a token can choose among {most}")


GLM4_MOE = Family(
    name="glm4_moe",
    hf_architectures=("Glm4MoeForCausalLM",),
    gguf_architectures=(),
    hf_defaults={
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "use_qk_norm": False,
    },
    hf_reads=("attention_bias", "partial_rotary_factor"),
    refine_hf=_refine_hf,
)
