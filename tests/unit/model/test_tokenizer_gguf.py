"""The tokenizer that is rebuilt from a GGUF file, held against transformers' reading of the same file."""

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from executor_svc.model.errors import ModelError, UnsupportedModel
from executor_svc.model.gguf_file import GgufFile
from executor_svc.model.load import default_model
from executor_svc.model.text import TextSide, text_of_gguf
from executor_svc.model.tokenizer_gguf import build_tokenizer

STRINGS = [
    "",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    " leading and trailing ",
    "tabs\tand\t\ttabs",
    "runs   of    spaces     and\n\n\nlines\r\n\r\n  end",
    "don't we'll they've I'm he'd she's y'all IT'S",
    "def f(x: int) -> int:\n    return x ** 2  # square\n\n\nif __name__ == '__main__':\n\tprint(f(3))",
    "3.14159 and 1234567890, 42nd, x1y22z333",
    "naïve café Ünïcödé ß ﬁ ligature",
    "日本語のテキスト と 中文 和 한국어",
    "Ελληνικά, русский, עברית, العربية, हिन्दी, ไทย",
    "emoji 👍 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 🫠 🥹 e\u0301 combining",
    "\u00a0non\u2003breaking\u200bzero width\ufeff",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|im_start|><|im_end|> <|im_",
    '{"json": [1, 2, {"k": "v\\n"}]} `code` **bold** \\_ \\| {{ }}',
    "\x00\x01\x7f control",
    "word" * 50,
]


@pytest.fixture(scope="module")
def side() -> TextSide:
    return text_of_gguf(GgufFile(default_model()))


@pytest.fixture(scope="module")
def ours(side: TextSide) -> Tokenizer:
    return Tokenizer.from_buffer(side.tokenizer_json)


@pytest.fixture(scope="module")
def theirs():
    path = default_model()
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.mark.parametrize("text", STRINGS)
def test_equals_transformers(ours, theirs, text):
    ids = ours.encode(text).ids
    assert ids == theirs(text).input_ids
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("text", [text for text in STRINGS if text])
def test_round_trip(ours, text):
    assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_digits_stand_alone_even_behind_spaces(ours):
    """SmolLM cuts single digits out before anything else; transformers ignores the name `smollm` and differs."""
    assert ours.encode("x  12").tokens == ["x", "ĠĠ", "1", "2"]


def test_special_ids(side):
    assert (side.bos_token_id, side.eos_token_ids, side.add_bos) == (1, (2,), False)
    assert side.num_ids == 49152
    assert "<|im_start|>" in side.chat_template


def test_special_tokens_are_special(ours, side):
    added = ours.get_added_tokens_decoder()
    assert added[side.bos_token_id].content == "<|im_start|>"
    assert all(token.special for token in added.values())
    assert ours.decode(ours.encode("<|im_start|>a<|im_end|>").ids) == "a"


BYTES = ["<s>", "<u>", *sorted(__import__("tokenizers").pre_tokenizers.ByteLevel.alphabet())]
TYPES = [3, 4, *[1] * (len(BYTES) - 2)]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("llama-bpe", "ab  12345", ["ab", "Ġ", "Ġ", "123", "45"]),
        ("qwen2", "ab 123", ["ab", "Ġ", "1", "2", "3"]),
        ("gpt-2", "ab 123", ["ab", "Ġ123"]),
        ("smollm", "ab 123", ["ab", "Ġ", "1", "2", "3"]),
    ],
)
def test_pre_tokenizers_cut_where_their_name_says(pre, text, pieces):
    tokenizer = build_tokenizer(BYTES, token_types=TYPES, merges=[], model="gpt2", pre=pre)
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_user_defined_tokens_are_whole_but_not_special():
    tokenizer = build_tokenizer(BYTES, token_types=TYPES, merges=[], model="gpt2", pre="gpt-2")
    assert tokenizer.encode("<u><s>").ids == [1, 0]
    assert tokenizer.decode([0, 1]) == "<u>"


@pytest.mark.parametrize(
    ("model", "pre", "name"), [("llama", "default", "llama"), ("gpt2", "chatglm-bpe", "chatglm-bpe"), ("t5", "", "t5")]
)
def test_unknown_kinds_are_refused_by_name(model, pre, name):
    with pytest.raises(UnsupportedModel, match=name):
        build_tokenizer(BYTES, token_types=TYPES, merges=[], model=model, pre=pre)


@pytest.mark.parametrize("merges", [["a"], ["a b c"]])
def test_a_broken_merge_is_refused(merges):
    with pytest.raises(ModelError, match="merge"):
        build_tokenizer(BYTES, token_types=TYPES, merges=merges, model="gpt2", pre="gpt-2")
