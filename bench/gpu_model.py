"""A model with random weights of a given shape: what a step costs does not depend on what the weights are."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from executor_svc.model.config import ModelConfig, RopeConfig, expected_tensors
from executor_svc.model.load import OpenModel
from executor_svc.model.text import TextSide
from kernels.group_weights import GroupWeights
from kernels.layout import F32

_DRAWN: Final = 1 << 20
"""Numbers drawn; a larger tensor repeats them, for drawing billions takes longer than all that is measured."""


def shape_of(name: str) -> ModelConfig:
    """8b and 1b are Llama 3's; tiny is as small as the kernels allow."""
    layers, hidden, inner, heads, kv_heads, dim, vocab = {
        "8b": (32, 4096, 14336, 32, 8, 128, 128256),
        "1b": (16, 2048, 8192, 32, 8, 64, 128256),
        "tiny": (2, 128, 256, 4, 2, 64, 300),
    }[name]
    return ModelConfig(
        family="llama",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        vocab_size=vocab,
        max_position=131072 if name != "tiny" else 512,
        rms_eps=1e-5,
        rope=RopeConfig(theta=500000.0),
        windows=(0,) * layers,
        tied=False,
        qkv_bias=False,
        qk_norm=False,
    )


def weight_bytes(config: ModelConfig, *, bytes_each: int) -> int:
    """What a decode step reads of them: all but the embedding."""
    shapes = expected_tensors(config)
    counted = sum(rows[0] * (rows[1] if len(rows) > 1 else 1) for name, rows in shapes.items() if "embed_tokens" not in name)
    return counted * bytes_each


class RandomSource:
    """A `TensorSource` that makes each tensor up, the same ones in every process."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = expected_tensors(config)
        self._drawn = np.random.default_rng(0).standard_normal(_DRAWN, np.float32) * np.float32(0.02)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `TensorSource`."""
        return self._shapes

    def load(self, name: str) -> F32:
        """See `TensorSource`. Vectors are norms, all ones."""
        shape = self._shapes[name]
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        # a period that is odd keeps rows from repeating where their length divides it
        return np.resize(self._drawn[: _DRAWN - 1], shape)

    def has_groups(self, name: str) -> bool:
        """See `TensorSource`."""
        return False

    def groups(self, name: str) -> GroupWeights | None:
        """See `TensorSource`."""
        return None


def random_model(name: str) -> OpenModel:
    """Opened as a file would be; its tokenizer knows one word."""
    config = shape_of(name)
    tokenizer = Tokenizer(WordLevel({"word": 0}))
    text = TextSide(tokenizer.to_str().encode(), config.vocab_size, "", None, False, ())
    return OpenModel(f"random-{name}", "", config, text, RandomSource(config))
