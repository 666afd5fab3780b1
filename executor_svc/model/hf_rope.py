"""The rotary settings of a config.json, in all the ways that they were ever written."""

from collections.abc import Mapping
from typing import Any

from executor_svc.model.config import RopeConfig


def read_rope(raw: Mapping[str, Any]) -> RopeConfig:
    """transformers 5 writes `rope_parameters`; before, `rope_theta` stood alone and `rope_scaling` beside it."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    return RopeConfig(
        theta=float(scaling.get("rope_theta", raw.get("rope_theta", 10000.0))),
        kind=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(scaling.get("original_max_position_embeddings", raw.get("max_position_embeddings", 8192))),
    )
