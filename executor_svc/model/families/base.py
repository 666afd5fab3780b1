"""What one family of models adds to the common decoder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Windows = Callable[[Mapping[str, Any], int], tuple[int, ...]]
"""(Hugging Face configuration, number of layers) -> window of each layer, 0 = all."""


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
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    gguf_permuted: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    windows: Windows = whole_context
