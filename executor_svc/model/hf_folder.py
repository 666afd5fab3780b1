"""Reading a Hugging Face folder: config.json and safetensors, one file or sharded. Nothing in the folder is ever executed."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from executor_svc.model.config import ModelConfig
from executor_svc.model.errors import ModelError, TensorMismatch, UnsupportedModel
from executor_svc.model.families import by_hf_architecture
from executor_svc.model.families.base import Family
from executor_svc.model.hf_rope import read_rope
from kernels.layout import F32

_ROTATED: Final = re.compile(r"\.self_attn\.(?:[qk]_proj\.(?:weight|bias)|[qk]_norm\.weight)$")
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.")


class HfFolder:
    """One model folder. A TensorSource; also gives the configuration."""

    def __init__(self, path: Path) -> None:
        """Reads config.json and the headers of the weights; raises ModelError naming what is wrong."""
        self._path = path
        self.raw: dict[str, Any] = read_json(path / "config.json")
        self.family: Family = by_hf_architecture(str((self.raw.get("architectures") or ["none named"])[0]))
        try:
            self.config: ModelConfig = _read_config({**self.family.hf_defaults, **self.raw}, self.family)
            self._num_draft_layers = int(self.raw.get("num_nextn_predict_layers") or self.raw.get("num_mtp_layers") or 0)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"config.json: a setting is not what it should be: {error}") from error
        self.weight_files: list[Path] = _weight_files(path)
        self._place, self._shapes = _headers(self.weight_files)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """As TensorSource, without what old files carry and no model reads: inverse frequencies, a second copy of a tied head."""
        unread = {"lm_head.weight"} if self.config.tied else set()
        return {
            name: shape
            for name, shape in self._shapes.items()
            if name not in unread and not name.endswith("rotary_emb.inv_freq") and not self._is_of_drafts(name)
        }

    def draft_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of what `shapes` leaves out because it only drafts."""
        return {name: shape for name, shape in self._shapes.items() if self._is_of_drafts(name)}

    def _is_of_drafts(self, name: str) -> bool:
        """Whether a tensor belongs to the layers behind the last, with which a checkpoint predicts more tokens."""
        layer = _LAYER.match(name)
        return layer is not None and 0 <= int(layer[1]) - self.config.num_layers < self._num_draft_layers

    def load(self, name: str) -> F32:
        """As TensorSource. Read by torch, since NumPy has no bfloat16."""
        import torch

        with safe_open(self._place[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        if not tensor.is_floating_point():
            raise UnsupportedModel(f"tensor {name!r} is {tensor.dtype}: quantised safetensors are not supported")
        array: F32 = tensor.to(torch.float32).contiguous().numpy()
        if (turning := self.config.rope.rotary_dim) and _ROTATED.search(name):
            array = _paired_up(array, turning=turning, head_dim=self.config.head_dim)
        return self.family.hf_norm_offset + array if name.endswith("norm.weight") else array

    def has_groups(self, name: str) -> bool:
        """As TensorSource."""
        return False

    def groups(self, name: str) -> None:
        """As TensorSource: a folder holds floats."""
        return


def _paired_up(array: F32, *, turning: int, head_dim: int) -> F32:
    """Rows of queries or keys, bias or norm likewise: the two halves of what rotates, each with half of what does not behind it,
    so that all of a head rotates, some of it by nothing. Scores are sums over a head and do not change."""
    still, half, rest = np.arange(turning, head_dim), turning // 2, (head_dim - turning) // 2
    order = np.concatenate((np.arange(half), still[:rest], np.arange(half, turning), still[rest:]))
    heads = array.reshape(-1, head_dim, *array.shape[1:])
    return np.ascontiguousarray(heads[:, order].reshape(array.shape))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ModelError names the file when it is missing or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"the model folder has no {path.name}") from error
    except ValueError as error:
        raise ModelError(f"{path.name} is not JSON") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} is not a JSON object")
    return value


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = sorted({str(name) for name in read_json(index).get("weight_map", {}).values()})
        if any(Path(name).name != name for name in names):
            raise ModelError("model.safetensors.index.json names a file outside the folder")
    else:
        names = ["model.safetensors"]
    if absent := [name for name in names if not (path / name).is_file()]:
        raise ModelError(f"the model folder has no {absent[0]}; only safetensors are read, never pickled weights")
    return [path / name for name in names]


def _headers(files: list[Path]) -> tuple[dict[str, Path], dict[str, tuple[int, ...]]]:
    place: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118  a reader, not a dict
                    if name in place:
                        raise TensorMismatch(f"tensor {name!r} is in two files")
                    place[name], shapes[name] = path, tuple(file.get_slice(name).get_shape())
        except SafetensorError as error:
            raise ModelError(f"{path.name} is not a whole safetensors file") from error
    return place, shapes


def _read_config(raw: Mapping[str, Any], family: Family) -> ModelConfig:
    def number(key: str, default: int | None = None) -> int:
        value = raw.get(key)
        value = default if value is None else value
        if not isinstance(value, int):
            raise ModelError(f"config.json: {key} is missing or not a whole number")
        return value

    _refuse_unknown(raw, family)
    heads, num_layers = number("num_attention_heads"), number("num_hidden_layers")
    config = ModelConfig(
        family=family.name,
        num_layers=num_layers,
        hidden_size=number("hidden_size"),
        intermediate_size=number("intermediate_size"),
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", number("hidden_size") // heads),
        vocab_size=number("vocab_size"),
        max_position=number("max_position_embeddings"),
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=read_rope(raw),
        windows=family.windows(raw, num_layers),
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
    )
    return family.refine_hf(config, raw)


def _refuse_unknown(raw: Mapping[str, Any], family: Family) -> None:
    """Settings that would change the arithmetic and are not implemented."""
    must = {
        "hidden_act": "silu",
        "mlp_bias": False,
        "attention_bias": False,
        "quantization_config": None,
        "partial_rotary_factor": 1.0,
        **family.hf_must,
    }
    for key, value in must.items():
        if key not in family.hf_reads and raw.get(key) not in (None, value) and not (key == "attention_bias" and family.qkv_bias):
            raise UnsupportedModel(f"config.json: {key} = {raw[key]!r} is not supported")
