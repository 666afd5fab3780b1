"""The table and the verdict of `drumline bench mtp`, from runs written by hand."""

import io

from rich.console import Console

from bench.mtp import Turn, arms_of, differences, many_questions, table_of
from bench.mtp_config import MtpSettings
from drumline.settings import resolve
from launcher.config import ServeSettings


def turn(arm: str, seconds: float, *, texts=("a", "b"), drafts=(0, 0, ())) -> Turn:
    rows, drafted, accepted = drafts
    return Turn(arm, 1, 100, seconds, texts, rows, drafted, accepted, rows, rows + sum(accepted))


def shown(turns: list[Turn]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table_of(turns))
    return console.export_text()


def test_ratios_are_taken_within_a_repetition_and_places_add_up() -> None:
    turns = [
        turn("none", 2.0),
        turn("mtp 2", 1.0, drafts=(40, 80, (20, 10))),
        turn("mtp 2", 4.0, drafts=(40, 80, (20, 10))),
        turn("none", 4.0),
    ]
    text = shown(turns)
    assert "1.50 (1.00 .. 2.00)" in text
    assert "38 %" in text
    assert "0.50, 0.25" in text
    assert "1.75" in text


def test_what_nobody_drafted_has_no_acceptance() -> None:
    assert shown([turn("none", 1.0), turn("ngram 3", 1.0)]).count("n/a") == 10


def test_a_different_word_is_named() -> None:
    assert differences([turn("none", 1.0), turn("mtp 2", 1.0)]) == []
    assert differences([turn("none", 1.0), turn("mtp 2", 1.0, texts=("a", "c"))]) == ["mtp 2 at 1 streams, question 2"]


def test_more_streams_than_questions_get_questions_of_their_own() -> None:
    assert len(set(many_questions(200))) == 200
    assert many_questions(200)[:32] == many_questions(32)


def test_serve_takes_the_flags_of_every_arm() -> None:
    for arm in arms_of(MtpSettings(drafter=("ngram", "mtp"), depth=(1, 3), advance=("per_sequence", "cohort"))):
        resolve(ServeSettings, section="serve", argv=list(arm.flags), environ={})


def test_arms_differ_in_drafts_only() -> None:
    arms = arms_of(MtpSettings(drafter=("ngram",), depth=(1, 3), advance=("per_sequence", "cohort")))
    assert [arm.name for arm in arms] == ["none", "ngram 1", "ngram 1 cohort", "ngram 3", "ngram 3 cohort"]
    assert arms[0].flags == ("--drafts", "off")
    assert all("--drafts" in arm.flags for arm in arms)
