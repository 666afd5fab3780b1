"""A draft head on disk: one safetensors file of float16 tensors, for exactly one model.

    hidden_norm.weight, embed_norm.weight, norm.weight     [hidden]
    proj.weight                                            [hidden, 2 hidden], over the normed hidden state, then the normed
    embedding model.layers.0.*                                       one decoder layer of the model's own shape, under the usual
    names token_ids                                              i32 [V], the tokens that it can draft, rising

The embedding and the rows of the output head are the model's own. The shape is DeepSeek-V3's (arXiv:2412.19437, section 2.2); the
metadata names the model's digest, so that a head is never put on another model.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from executor_svc.model.config import ModelConfig, expected_tensors
from executor_svc.model.errors import ModelError
from kernels.layout import F32, I32

LAYER: Final = "model.layers.0."
FORMAT: Final = "drumline-draft-head-1"


def head_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every float tensor of a head whose one layer has this configuration."""
    hidden = config.hidden_size
    layer = {name: shape for name, shape in expected_tensors(config).items() if name.startswith(LAYER)}
    norms = {f"{name}.weight": (hidden,) for name in ("hidden_norm", "embed_norm", "norm")}
    return {**norms, "proj.weight": (hidden, 2 * hidden), **layer}


class HeadFile:
    """A `HeadSource` over a head's file, checked against the model that it is for.

    Attributes:
        config: of its one layer: the model's, without a window, and with a plain feed-forward part.
    """

    begin = 0

    def __init__(self, path: Path, *, config: ModelConfig, model_digest: str) -> None:
        """Raises ModelError naming what is wrong."""
        self._path = path
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = dict(file.metadata() or {})
                self._tensors: dict[str, NDArray[np.generic]] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ModelError(f"draft head {path.name} is not a whole safetensors file") from error
        self.metadata = metadata
        if metadata.get("format") != FORMAT:
            raise ModelError(f"draft head {path.name} has format {metadata.get('format')!r}, this release reads {FORMAT!r}")
        if metadata.get("model_digest") != model_digest:
            raise ModelError(f"draft head {path.name} was trained for another model than this one")
        self.config = replace(config, num_layers=1, windows=(0,), moe=None)
        self._check()

    def _check(self) -> None:
        need = head_shapes(self.config)
        have = {name: tensor.shape for name, tensor in self._tensors.items() if name != "token_ids"}
        if have != need:
            wrong = next(name for name in sorted(need.keys() | have.keys()) if need.get(name) != have.get(name))
            raise ModelError(f"draft head: tensor {wrong!r} has shape {have.get(wrong)}, the model needs {need.get(wrong)}")
        ids: NDArray[Any] = self._tensors.get("token_ids", np.zeros(0))
        known = ids.ndim == 1 and ids.dtype == np.int32 and len(ids) > 0
        if not known or ids[0] < 0 or ids[-1] >= self.config.vocab_size or (np.diff(ids) <= 0).any():
            raise ModelError("draft head: token_ids must be rising ids of the model's vocabulary, int32")

    @property
    def token_ids(self) -> I32:
        """What it can draft, rising."""
        ids: I32 = np.asarray(self._tensors["token_ids"], np.int32)
        return ids

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """As TensorSource."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def load(self, name: str) -> F32:
        """As TensorSource."""
        return np.ascontiguousarray(self._tensors[name], np.float32)

    def has_groups(self, name: str) -> bool:
        """As TensorSource."""
        return False

    def groups(self, name: str) -> None:
        """As TensorSource: a head holds floats."""
        return
