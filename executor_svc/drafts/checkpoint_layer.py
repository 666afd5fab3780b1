"""The layer behind a checkpoint's last, with which it predicts a token more: DeepSeek-V3's module (arXiv:2412.19437, section 2.2).

    model.layers.N.hnorm, .enorm, .shared_head.norm, .eh_proj, and one decoder layer; N = num_hidden_layers

Given under the names of a draft head's own file. `eh_proj` takes the normed embedding first, a head's file the normed state. What
the checkpoint repeats of the model, its embedding and its output head, is not read.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from executor_svc.drafts.head_file import LAYER, head_shapes
from executor_svc.model.errors import TensorMismatch
from executor_svc.model.hf_folder import HfFolder
from kernels.layout import F32, I32

_PROJ: Final = "proj.weight"
_OWN: Final = {
    "hidden_norm.weight": "hnorm.weight",
    "embed_norm.weight": "enorm.weight",
    "norm.weight": "shared_head.norm.weight",
    _PROJ: "eh_proj.weight",
}


class CheckpointLayer:
    """A `HeadSource` over a folder that has such a layer.

    Attributes:
        config: of the layer alone. begin: 1, for no state stands before the first token.
    """

    begin = 1

    def __init__(self, folder: HfFolder) -> None:
        """Raises TensorMismatch naming what is missing or has another shape."""
        config = folder.config
        self._folder = folder
        self._prefix = f"model.layers.{config.num_layers}."
        moe = None if config.moe is None else replace(config.moe, first_layer=0)
        self.config = replace(config, num_layers=1, windows=(0,), moe=moe)
        have = folder.draft_shapes()
        for name, shape in self.shapes().items():
            place = self._place(name)
            if have.get(place) != shape:
                raise TensorMismatch(f"tensor {place!r} has shape {have.get(place)}, a module that predicts tokens needs {shape}")

    @property
    def token_ids(self) -> I32:
        """All."""
        ids: I32 = np.arange(self.config.vocab_size, dtype=np.int32)
        return ids

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """As TensorSource."""
        return head_shapes(self.config)

    def load(self, name: str) -> F32:
        """As TensorSource."""
        array = self._folder.load(self._place(name))
        return np.concatenate(np.split(array, 2, axis=1)[::-1], axis=1) if name == _PROJ else array

    def has_groups(self, name: str) -> bool:
        """As TensorSource."""
        return False

    def groups(self, name: str) -> None:
        """As TensorSource: a folder holds floats."""
        return

    def _place(self, name: str) -> str:
        """Its name in the checkpoint."""
        return self._prefix + (_OWN.get(name) or name.removeprefix(LAYER))
