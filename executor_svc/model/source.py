"""Where tensors come from: one interface over GGUF files and safetensors folders."""

from collections.abc import Mapping
from typing import Protocol

from executor_svc.model.errors import TensorMismatch
from kernels.group_weights import GroupWeights
from kernels.layout import F32


class TensorSource(Protocol):
    """The tensors of one model under Hugging Face names. Each `load` reads and converts afresh: nothing is kept."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of all that the files hold and that a model could need."""
        ...

    def load(self, name: str) -> F32:
        """The tensor in float32, contiguous, owned by the caller. `name` is a key of `shapes()`."""
        ...

    def has_groups(self, name: str) -> bool:
        """Whether the file holds this tensor as small integers in groups."""
        ...

    def groups(self, name: str) -> GroupWeights | None:
        """The matrix as the file holds it; None unless `has_groups`, and for the rare one whose codes no kernel takes."""
        ...


def check_tensors(have: Mapping[str, tuple[int, ...]], *, need: Mapping[str, tuple[int, ...]]) -> None:
    """Raises TensorMismatch, naming the first tensor that is missing, left over or of another shape."""
    if missing := sorted(need.keys() - have.keys()):
        raise TensorMismatch(f"tensor {missing[0]!r} is missing ({len(missing)} in all)")
    if extra := sorted(have.keys() - need.keys()):
        raise TensorMismatch(f"tensor {extra[0]!r} is in the file, but not in a model of this configuration ({len(extra)} in all)")
    for name, shape in need.items():
        if have[name] != shape:
            raise TensorMismatch(f"tensor {name!r} has shape {have[name]}, the configuration says {shape}")
