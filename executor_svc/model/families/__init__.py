"""The families that this executor knows, found by the name that a file gives itself."""

from typing import Final

from executor_svc.model.errors import UnsupportedModel
from executor_svc.model.families.base import Family
from executor_svc.model.families.gemma3 import GEMMA3
from executor_svc.model.families.glm4_moe import GLM4_MOE
from executor_svc.model.families.llama import LLAMA
from executor_svc.model.families.mistral import MISTRAL
from executor_svc.model.families.qwen import QWEN2, QWEN3

FAMILIES: Final[tuple[Family, ...]] = (GEMMA3, GLM4_MOE, LLAMA, MISTRAL, QWEN2, QWEN3)


def by_hf_architecture(architecture: str) -> Family:
    """The family of a config.json; UnsupportedModel names what is known."""
    return _find(architecture, {name: family for family in FAMILIES for name in family.hf_architectures})


def by_gguf_architecture(architecture: str) -> Family:
    """The family of a GGUF file; UnsupportedModel names what is known."""
    return _find(architecture, {name: family for family in FAMILIES for name in family.gguf_architectures})


def _find(architecture: str, known: dict[str, Family]) -> Family:
    if architecture not in known:
        raise UnsupportedModel(f"architecture {architecture!r} is not supported; known: {', '.join(sorted(known))}")
    return known[architecture]
