"""Deltas to pieces: text, held-back text, and the scores that go with it."""

from dataclasses import replace

import pytest

from gateway.choice import Choice
from gateway.detokenizer import TableDetokenizer
from gateway.sequences import Delta, TokenLogprob
from gateway.stops import StopMatcher
from gateway.vocabulary import Vocabulary
from tests.support.scripted_scheduler import small_tokenizer

TOKENIZER = small_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER, vocab_size=TOKENIZER.get_vocab_size())


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def new_choice(*stops: str, min_tokens: int = 0) -> Choice:
    matcher = StopMatcher(stops) if stops else None
    return Choice(0, prompt=0, detokenizer=TableDetokenizer(VOCABULARY), stops=matcher, min_tokens=min_tokens)


def run(choice: Choice, tokens: list[int], *, finish: str = "length", scored: bool = False) -> tuple[list[str], list[int]]:
    texts, scores = [], []
    for place, token in enumerate(tokens):
        delta = Delta(0, [token], [TokenLogprob(token, -1.0, ())] if scored else [])
        piece = choice.feed(replace(delta, finish_reason=finish if place == len(tokens) - 1 else None))
        texts.append(piece.text)
        scores += [item.token.token_id for item in piece.logprobs]
        if piece.finish_reason:
            break
    return texts, scores


@pytest.mark.parametrize(
    ("stop", "shown"), [("world", "Hello, "), ("o, w", "Hell"), ("!", "Hello, world"), ("nope", "Hello, world!")]
)
def test_b009_b010_stop_anywhere(stop: str, shown: str) -> None:
    choice = new_choice(stop)
    texts, _ = run(choice, ids("Hello, world!"))
    assert "".join(texts) == shown
    assert choice.finish_reason == ("length" if stop == "nope" else "stop")


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_b007_b008_held_text_is_flushed_at_every_finish(finish: str) -> None:
    texts, _ = run(new_choice("eas!", "asX"), ids("pleas"), finish=finish)
    assert "".join(texts) == "pleas"


def test_b011_min_tokens_frees_its_text_from_stops() -> None:
    tokens = ids("abc\nabc\nabc\n")
    choice = new_choice("\n", min_tokens=len(ids("abc\nabc\n")))
    texts, _ = run(choice, tokens)
    assert "".join(texts) == "abc\nabc\nabc"
    assert choice.finish_reason == "stop"


def test_b013_usage_ends_with_the_token_that_completed_the_stop() -> None:
    choice = new_choice("b")
    tokens = ids("x") + ids("b") + ids("c")
    piece = choice.feed(Delta(0, tokens, finish_reason="length"))
    assert (piece.text, piece.finish_reason, choice.num_tokens) == ("x", "stop", 2)


def test_scores_come_with_their_text_and_never_betray_a_stop() -> None:
    tokens = ids("q") + ids("D") + ids("E") + ids("z")
    choice = new_choice("DEF", "zz")
    texts, scores = run(choice, tokens[:3], scored=True, finish="length")
    assert texts == ["q", "", "DE"]
    assert scores == tokens[:3]
    texts, scores = run(new_choice("DE"), tokens, scored=True)
    assert "".join(texts) == "q"
    assert scores == tokens[:1]


def test_unfinished_character_is_shown_as_replacement_at_the_end_only() -> None:
    tokens = ids("😀")[:-1]
    texts, _ = run(new_choice(), tokens)
    assert texts[:-1] == [""] * (len(tokens) - 1)
    assert texts[-1] == "\ufffd"
