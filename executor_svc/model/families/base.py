"""What one family of models adds to the common decoder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from executor_svc.model.config import ModelConfig

Windows = Callable[[Mapping[str, Any], int], tuple[int, ...]]
"""(Hugging Face configuration, number of layers) -> window of each layer, 0 = all."""


Refine = Callable[[ModelConfig, Mapping[str, Any]], ModelConfig]
"""(what every family has, the file's own settings) -> the whole configuration."""


def as_it_is(config: ModelConfig, settings: Mapping[str, Any]) -> ModelConfig:
    """A family that adds nothing."""
    del settings
    return config


def whole_context(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Every layer sees everything."""
    del config
    return (0,) * num_layers


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models. A new one is a new file with one of these.

    Attributes:
        name: for people.
        hf_architectures: values of `architectures[0]` in a config.json.
        gguf_architectures: values of `general.architecture` in a GGUF file.
        gguf_permuted: the GGUF conversion reordered the rows of q and k (interleaved rotation), which loading undoes.
        qkv_bias, qk_norm: as in `ModelConfig`.
        windows: from a config.json.
        hf_defaults: what a config.json means by leaving a setting out.
        hf_must: settings of a config.json -> the only value that is implemented, besides null.
        hf_reads: settings of a config.json that would be refused, and that `refine_hf` looks at itself.
        hf_norm_offset: what a checkpoint's norm weights lack; a GGUF file has it in them.
        gguf_names: parts of tensor names in a layer of a GGUF file -> ours, where they differ from other families.
        refine_hf, refine_gguf: the rest of the configuration, from a config.json and from GGUF metadata (keys without the
            architecture in front). They raise UnsupportedModel for what is not implemented.
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    gguf_permuted: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    windows: Windows = whole_context
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)
    hf_must: Mapping[str, Any] = field(default_factory=dict)
    hf_reads: tuple[str, ...] = ()
    hf_norm_offset: float = 0.0
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    refine_hf: Refine = as_it_is
    refine_gguf: Refine = as_it_is
