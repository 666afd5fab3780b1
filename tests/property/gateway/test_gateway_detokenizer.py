"""O1: joined pieces are the whole decode, whatever the ids, whatever the cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from gateway.detokenizer import TableDetokenizer, WindowDetokenizer
from gateway.vocabulary import Vocabulary
from tests.support.scripted_scheduler import small_tokenizer

TOKENIZER = small_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER, vocab_size=TOKENIZER.get_vocab_size() + 8)
TEXTS = [
    "ďábelské 😀 한국어 ไทย",
    "\U0001fae0\U0001f979\u9f9c 🇩🇪 👨‍👩‍👧‍👦 e\u0301",
    "a    b\n        indented\n\ttab",
    " leading",
    "<b>\\_x\\| {{ y }}</b>\n\n   |a|\n",
]


def sentence_piece() -> Tokenizer:
    """A byte-fallback vocabulary as Llama's: no whole-character token for anything but a few words."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {piece: 259 + place for place, piece in enumerate(["\u2581", "a", "b", "\u2581ab", "ab", "<", ">", "x"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("\u2581", "ab")], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    return tokenizer


def joined(detokenizer, ids: list[int]) -> tuple[list[str], str]:
    pieces = [detokenizer.push(token) for token in ids]
    return pieces, "".join(pieces) + detokenizer.flush()


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() + 20), max_size=200))
@settings(max_examples=400, deadline=None)
def test_o1_b003_b004_b005_any_ids_join_to_the_full_decode(ids: list[int]) -> None:
    _, text = joined(TableDetokenizer(VOCABULARY), ids)
    assert text == TOKENIZER.decode(ids)
    text.encode()


@given(st.text(max_size=60), st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_o1_b001_b002_text_never_shows_half_a_character(text: str, start: int) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    pieces, whole = joined(TableDetokenizer(VOCABULARY), ids)
    assert whole == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)
    assert joined(TableDetokenizer(VOCABULARY), ids[start:])[1] == TOKENIZER.decode(ids[start:])


@pytest.mark.parametrize("text", TEXTS)
def test_b001_b002_b003_b006_known_texts(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    pieces, whole = joined(TableDetokenizer(VOCABULARY), ids)
    assert whole == text
    assert "\ufffd" not in "".join(pieces)


def test_b004_two_thousand_continuation_bytes() -> None:
    table = {piece: index for index, piece in enumerate(VOCABULARY.pieces) if len(piece) == 1}
    ids = [table[bytes([0x80 + place % 64])] for place in range(2000)] + TOKENIZER.encode("ok").ids
    _, whole = joined(TableDetokenizer(VOCABULARY), ids)
    assert whole == "\ufffd" * 2000 + "ok"


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=60))
@settings(max_examples=100, deadline=None)
def test_window_never_raises_and_loses_no_valid_text(ids: list[int]) -> None:
    _, text = joined(WindowDetokenizer(TOKENIZER), ids)
    assert text.replace("\ufffd", "") == TOKENIZER.decode(ids).replace("\ufffd", "")


@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_window_shows_text_whole(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert joined(WindowDetokenizer(TOKENIZER), ids)[1] == text


SPM = sentence_piece()
SPM_VOCABULARY = Vocabulary(SPM, vocab_size=SPM.get_vocab_size())


@given(st.text(alphabet="ab x<>é😀한", max_size=30))
@settings(max_examples=200, deadline=None)
def test_byte_fallback_text_comes_back(text: str) -> None:
    ids = SPM.encode(text.replace(" ", "\u2581"), add_special_tokens=False).ids
    pieces, whole = joined(TableDetokenizer(SPM_VOCABULARY), ids)
    assert whole == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert SPM.decode(ids) == text.removeprefix(" ")


def test_special_tokens_are_not_shown_and_named_pieces_are_kept() -> None:
    end = TOKENIZER.token_to_id("<|im_end|>")
    assert VOCABULARY.shown(end) == b""
    assert VOCABULARY.token_bytes(end) == b"<|im_end|>"
    assert json.loads(TOKENIZER.to_str())["decoder"]["type"] == "ByteLevel"
