"""Documents name code and tests; these names must exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions and classes of a file, methods as `Class.method` and bare."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names.update(f"{node.name}.{sub.name}" for sub in node.body if isinstance(sub, ast.FunctionDef | ast.AsyncFunctionDef))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return frozenset(names)


def pointers(document: Path) -> list[tuple[str, str]]:
    return re.findall(r"`([\w./-]+\.py):([\w.]+)`", document.read_text())


@pytest.mark.parametrize("name", ["architecture.md", "invariants.md", "ragged_cohorts.md"])
def test_every_pointer_of_the_document_exists(name: str) -> None:
    found = pointers(DOCS / name)
    assert len(found) >= 10, "the document points at code"
    for file, function in found:
        path = ROOT / file
        assert path.is_file(), f"{name}: {file} is gone"
        assert function in names_in(path), f"{name}: {file} has no {function}"


def test_every_invariant_is_numbered_and_names_a_test() -> None:
    rows = re.findall(r"^\| (I\d+) \|.*$", (DOCS / "invariants.md").read_text(), flags=re.M)
    assert rows == [f"I{i}" for i in range(1, len(rows) + 1)]
    for line in (DOCS / "invariants.md").read_text().splitlines():
        if line.startswith("| I"):
            assert re.search(r"`tests/[\w./]+\.py:\w+`", line), line


def test_field_report_rows_are_tested_or_explained() -> None:
    text = (DOCS / "field_reports.md").read_text()
    tests = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    rows = re.findall(r"^\| (B\d{3}) \| (.+?) \|", text, flags=re.M)
    assert [row for row, _ in rows] == [f"B{i:03d}" for i in range(1, 105)]
    for row, where in rows:
        if where.startswith("not yet"):
            assert len(where) > 20, f"{row}: say why not yet"
        else:
            assert re.search(rf"{row}", tests, flags=re.I), f"{row} is said to be tested, and no test names it"
