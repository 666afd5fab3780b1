"""A tiny real tokenizer for the fake backend: byte-level BPE as a `tokenizer.json`, built from a word list without any library."""

import json
from dataclasses import dataclass
from typing import Final

_WORDS: Final = (
    "the a to of and in is it that for on with as at by we you they drum line beat march step row slot block cadence cohort plan "
    "sky blue river stone quiet morning song walks sings small bright seven red green"
)
_MARKS: Final = (".", ",", "!")
SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special tokens, ids from 0; the last one ends a turn."""
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class FakeVocabulary:
    """What the fake backend knows of its tokens: `tokenizer_json` and the ids of whole words and of single bytes."""

    tokenizer_json: bytes
    size: int
    word_ids: tuple[int, ...]
    byte_ids: tuple[int, ...]


def build() -> FakeVocabulary:
    """Specials, then 256 bytes, then the words and the pieces that lead to them. Always the same."""
    letters = _byte_letters()
    vocabulary = {text: index for index, text in enumerate((*SPECIALS, *letters))}
    merges: list[tuple[str, str]] = []
    texts = [" " + word for word in _WORDS.split()] + list(_MARKS)
    for word in texts:
        spelt = [letters[byte] for byte in word.encode()]
        whole = spelt[0]
        for letter in spelt[1:]:
            if whole + letter not in vocabulary:
                vocabulary[whole + letter] = len(vocabulary)
                merges.append((whole, letter))
            whole += letter
    words = ["".join(letters[byte] for byte in word.encode()) for word in texts]
    return FakeVocabulary(
        tokenizer_json=json.dumps(_document(vocabulary, merges), ensure_ascii=True).encode(),
        size=len(vocabulary),
        word_ids=tuple(vocabulary[word] for word in words),
        byte_ids=tuple(range(len(SPECIALS), len(SPECIALS) + 256)),
    )


def _byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte: printable ones stand for themselves, the others move up from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


def _document(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for index, text in enumerate(SPECIALS)
    ]
    model = {
        "type": "BPE",
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocabulary,
        "merges": [list(pair) for pair in merges],
    }
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }
