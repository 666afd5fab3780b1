"""What the gateway needs of a model: tokenizer, chat template and special ids, from either file format."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from executor_svc.model.errors import ModelError
from executor_svc.model.gguf_file import GgufFile
from executor_svc.model.hf_folder import HfFolder, read_json
from executor_svc.model.tokenizer_gguf import build_tokenizer

_GGUF_ENDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class TextSide:
    """Tokenizer and special ids; fields as in `ModelInfo`. `num_ids` is one more than the largest id that the tokenizer knows."""

    tokenizer_json: bytes
    num_ids: int
    chat_template: str
    bos_token_id: int | None
    add_bos: bool
    eos_token_ids: tuple[int, ...]


def text_of_gguf(file: GgufFile) -> TextSide:
    """Rebuilds the tokenizer from the metadata; UnsupportedModel names a vocabulary or pre-tokenizer that is not known."""

    def meta(key: str, default: Any = None) -> Any:
        return file.get(f"tokenizer.ggml.{key}", default)

    tokens = meta("tokens", [])
    tokenizer = build_tokenizer(
        tokens,
        token_types=meta("token_type", []),
        merges=meta("merges", []),
        model=str(meta("model", "none")),
        pre=str(meta("pre", "none named")),
    )
    bos = meta("bos_token_id")
    return TextSide(
        tokenizer_json=tokenizer.to_str().encode(),
        num_ids=len(tokens),
        chat_template=str(file.get("tokenizer.chat_template", "")),
        bos_token_id=None if bos is None else int(bos),
        add_bos=bool(meta("add_bos_token", False)) and bos is not None,
        eos_token_ids=_known_ids((meta(key) for key in _GGUF_ENDS), limit=len(tokens)),
    )


def text_of_folder(folder: HfFolder, *, path: Path) -> TextSide:
    """Reads tokenizer.json and its neighbours; ModelError names a file that is missing or unreadable."""
    try:
        content = (path / "tokenizer.json").read_bytes()
        tokenizer = Tokenizer.from_buffer(content)
    except FileNotFoundError as error:
        raise ModelError("the model folder has no tokenizer.json; slow tokenizers are not supported") from error
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError("tokenizer.json cannot be read") from error
    side = _optional_json(path / "tokenizer_config.json")
    generation = _optional_json(path / "generation_config.json")
    num_ids = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    bos = _token_id(tokenizer, side.get("bos_token"))
    if bos is None and isinstance(folder.raw.get("bos_token_id"), int):
        bos = folder.raw["bos_token_id"]
    ends = [
        *_as_list(generation.get("eos_token_id")),
        *_as_list(folder.raw.get("eos_token_id")),
        _token_id(tokenizer, side.get("eos_token")),
    ]
    return TextSide(
        tokenizer_json=content,
        num_ids=num_ids,
        chat_template=_template(path, side),
        bos_token_id=bos,
        add_bos=bos is not None and tokenizer.encode("a").ids[:1] == [bos],
        eos_token_ids=_known_ids(ends, limit=num_ids),
    )


def _known_ids(ids: Iterable[Any], *, limit: int) -> tuple[int, ...]:
    """Whole numbers inside the vocabulary, each once, in order."""
    return tuple(dict.fromkeys(int(value) for value in ids if isinstance(value, int) and 0 <= value < limit))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _token_id(tokenizer: Tokenizer, token: Any) -> int | None:
    """Id of a token given as text or as an added-token object."""
    text = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def _template(path: Path, side: dict[str, Any]) -> str:
    """The file of its own, which newer folders have, else the entry in tokenizer_config.json; of several the default one."""
    own = path / "chat_template.jinja"
    if own.exists():
        return own.read_text(encoding="utf-8")
    template = side.get("chat_template") or ""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default") or ""
    return str(template)
