"""What a person reads who opens a door the wrong way."""

import sys

import pytest

from launcher import __main__ as command
from launcher import replay, trace


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        (["replay"], "Usage: drumline replay "),
        (["trace", "show"], "Usage: drumline trace show "),
        (["trace", "explain", "one"], "Usage: drumline trace explain "),
    ],
)
def test_the_usage_line_can_be_typed_as_it_stands(argv: list[str], usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    door = {"replay": replay.main, "trace": trace.main}[argv[0]]
    assert door(argv[1:]) == 2
    assert usage in capsys.readouterr().err


def test_a_missing_extra_is_one_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "argv", ["drumline", "bench", "--help"])
    with pytest.raises(SystemExit, match=r"drumline bench: psutil is not installed .*\[.*bench\]"):
        command.main()
