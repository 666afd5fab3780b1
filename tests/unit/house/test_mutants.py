"""The mutants of `make mutants`: each still applies to the code as it is, and their runner tells all four verdicts apart."""

import re
import subprocess
import sys

import pytest

from tests.mutants.__main__ import ROOT, main, status
from tests.mutants.table import load
from tests.mutants.trial import Outcome, Verdict

MUTANTS = load()


def test_all_26_are_there_and_the_four_that_upstream_missed_are_marked():
    assert [mutant.id for mutant in MUTANTS] == list(range(1, 27))
    assert {mutant.id for mutant in MUTANTS if mutant.fixture} == {2, 7, 18, 22}
    assert all(len(mutant.tests) == 1 for mutant in MUTANTS if mutant.fixture), "the fixture and nothing beside it"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.id))
def test_each_applies_once_and_its_tests_exist(mutant):
    wrong = mutant.of((ROOT / mutant.file).read_text(encoding="utf-8"))
    assert wrong is not None
    compile(wrong, mutant.file, "exec")
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


def test_the_page_names_each_with_its_file_and_test():
    rows = dict(re.findall(r"^\| G(\d+)\S* (.*)$", (ROOT / "docs/ragged_cohorts.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {int(number) for number in rows} == {mutant.id for mutant in MUTANTS}
    for mutant in MUTANTS:
        row = rows[str(mutant.id)]
        assert all(part in row for part in (mutant.what, mutant.file, *(test.replace("::", ":") for test in mutant.tests))), row


def test_none_is_caught_for_a_name_that_it_leaves_undefined(tmp_path):
    for mutant in MUTANTS:
        (tmp_path / f"mutant_{mutant.id}.py").write_text(mutant.of((ROOT / mutant.file).read_text(encoding="utf-8")))
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def toy(tmp_path):
    """A tree with one function and two tests of it, and a table of five mutants."""
    root = tmp_path / "toy"
    root.mkdir()
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (root / "sums.py").write_text("def least(a, b):\n    return min(a, b)\n\n\ndef most(a, b):\n    return max(a, b)\n")
    (root / "test_toy.py").write_text(
        "from sums import least, most\n\n\n"
        "def test_least():\n    assert least(1, 2) == 1\n\n\ndef test_most():\n    assert most(2, 2) == 2\n"
    )
    edits = [
        ("min(a, b)", "max(a, b)", "test_least"),
        ("max(a, b)", "min(a, b)", "test_most"),
        ("(a, b)", "(b, a)", "test_most"),
        ("max(a, b)", "max(a, b", "test_most"),
        ("sum(a, b)", "max(a, b)", "test_most"),
    ]
    table = tmp_path / "toy.toml"
    entries = [
        f'[[mutant]]\nid = {number}\nwhat = "w"\nfile = "sums.py"\nold = "{old}"\nnew = "{new}"\ntests = ["test_toy.py::{test}"]'
        for number, (old, new, test) in enumerate(edits, 1)
    ]
    table.write_text("\n".join(entries))
    return root, table


def test_every_verdict_is_told_and_all_but_caught_fail_the_run(toy, capsys):
    root, table = toy
    before = {path.name: path.read_bytes() for path in root.iterdir()}
    assert main(["--jobs", "2"], root=root, table=table) == 1
    out = capsys.readouterr().out
    told = re.findall(r"^(CAUGHT|SURVIVED|NOT APPLIED|BROKEN) +(\d) ", out, re.MULTILINE)
    verdicts = {int(number): verdict for verdict, number in told}
    assert verdicts == {1: "CAUGHT", 2: "SURVIVED", 3: "NOT APPLIED", 4: "BROKEN", 5: "NOT APPLIED"}
    assert "1/5 CAUGHT" in out
    assert "test_least" in out
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before, "the tree itself is never touched"


def test_only_a_run_in_which_all_are_caught_succeeds():
    caught = Outcome(Verdict.CAUGHT)
    assert status([caught, caught]) == 0
    assert status([]) == 1
    assert {status([caught, Outcome(verdict)]) for verdict in Verdict if verdict is not Verdict.CAUGHT} == {1}


def test_nothing_is_said_of_mutants_when_the_tests_fail_without_them(toy, capsys):
    root, table = toy
    (root / "test_toy.py").write_text("def test_least():\n    assert False\n\n\ndef test_most():\n    pass\n")
    assert main([], root=root, table=table) == 1
    out = capsys.readouterr().out
    assert "control: the tests fail on the code as it is" in out
    assert "CAUGHT" not in out


def test_an_unknown_mutant_is_named(toy, capsys):
    root, table = toy
    with pytest.raises(SystemExit) as end:
        main(["9"], root=root, table=table)
    assert end.value.code == 2
    assert "no mutant 9" in capsys.readouterr().err
