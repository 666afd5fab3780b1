"""The table of mutants: small wrong versions of our code, each of which some test must catch. `mutants.toml` is the data."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One edit of one file.

    Attributes:
        id: its number in the request's list. what: the mistake, in that list's words.
        file: relative to the tree. old, new: exact text, found once, and what stands there instead.
        tests: pytest ids; at least one must fail.
        note: where our design has another part than the request's, which one this is.
        fixture: upstream's tests missed it at first; `tests` is then the one fixture that it needs.
    """

    id: int
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    note: str = ""
    fixture: bool = False

    def of(self, source: str) -> str | None:
        """The wrong version of `source`; None unless the patch changes it in exactly one place."""
        if source.count(self.old) != 1 or self.old == self.new:
            return None
        return source.replace(self.old, self.new)

    def apply(self, tree: Path) -> str:
        """Writes the wrong version into `tree`; "" or why it was not applied, the tree unchanged."""
        path = tree / self.file
        if not path.is_file():
            return f"no file {self.file}"
        source = path.read_text(encoding="utf-8")
        wrong = self.of(source)
        if wrong is None:
            return f"its text is in {self.file} {source.count(self.old)} times, and must be there once"
        path.write_text(wrong, encoding="utf-8")
        return ""


def load(path: Path = TABLE) -> list[Mutant]:
    """The mutants of a table, as listed. Raises TypeError for a key that is unknown or missing."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
