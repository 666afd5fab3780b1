"""Each planted bug is located from its recording alone: the right name, step, row and slot come first. No core runs here."""

import json
import re
from pathlib import Path

import pytest

from drumline.trace.reader import open_recordings
from scheduler_svc.replay.audit import audit
from scheduler_svc.replay.findings import Name

FOLDER = Path(__file__).parents[2] / "fixtures" / "recordings"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_planted_bug_is_located(name: str) -> None:
    [recording] = open_recordings([FOLDER / f"{name}.trace"])
    first, *_ = audit(recording.header, recording)
    want = EXPECTED[name]
    assert (str(first.name), first.step, first.row, first.slot) == (want["name"], want["step"], want["row"], want["slot"])
    if want["block"] >= 0:
        assert str(want["block"]) in first.detail.replace(",", "").split()


def test_ten_bugs_at_least_are_planted() -> None:
    assert len(EXPECTED) >= 10


def test_the_session_without_a_bug_has_no_finding() -> None:
    [recording] = open_recordings([FOLDER / "control.trace"])
    assert audit(recording.header, recording) == []
    assert recording.ending == "closed"


def test_every_name_of_a_finding_is_given_somewhere() -> None:
    room = Path(__file__).parents[3] / "scheduler_svc" / "replay"
    told = "".join(path.read_text() for path in room.glob("audit*.py"))
    assert [name.name for name in Name if not re.search(rf"\bName\.{name.name}\b", told)] == []


def test_fixtures_are_small() -> None:
    assert all(path.stat().st_size < 100_000 for path in FOLDER.glob("*.trace"))


def test_the_audit_imports_nothing_of_the_core() -> None:
    import ast

    room = Path(__file__).parents[3] / "scheduler_svc" / "replay"
    for name in ("audit", "audit_plan", "audit_result", "audit_blocks", "books", "findings", "start"):
        for node in ast.walk(ast.parse((room / f"{name}.py").read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(module.startswith("scheduler_svc.core") or module == "scheduler_svc.wire" for module in modules), name
