"""Whether the whole curve can be measured here, decided before any of it is: no half a curve, no figure of a swapping machine."""

import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from bench.curve_cells import Cell, cells_of, lengths_of
from bench.curve_config import CurveSettings
from bench.memory import MARGIN, Geometry, MemoryUnknown, Need, available_bytes, geometry_of, need_of

_CHECK_S: Final = 600.0
_MIB: Final = 1 << 20


class PreflightRefused(Exception):
    """Nothing is measured. `word` says which of the three it is: `does not fit`, `failed` or `missing`."""

    def __init__(self, word: str, reason: str) -> None:
        super().__init__(f"preflight {word}: {reason}")
        self.word = word


@dataclass(frozen=True, slots=True)
class Fit:
    """What one cell needs at most, of `available` bytes."""

    cell: Cell
    longest: int
    need: Need
    available: int

    @property
    def fits(self) -> bool:
        """With the margin left free."""
        return self.need.total <= self.available * (1 - MARGIN)

    def text(self) -> str:
        """One line."""
        need, word = self.need, "fits" if self.fits else "DOES NOT FIT"
        parts = f"weights {need.weights // _MIB} + blocks {need.blocks // _MIB} + cohorts {need.cohorts // _MIB} + processes"
        rows = f"{self.cell.batch} rows of at most {self.longest} tokens"
        return f"{self.cell.name}: {rows} need {need.total // _MIB} MiB ({parts}), {self.available // _MIB} MiB are there: {word}"


def preflight(wanted: CurveSettings, say: Callable[[str], None]) -> list[Fit]:
    """Checks everything and says each finding. Raises PreflightRefused."""
    _check_parts()
    _run_check(wanted.preflight)
    try:
        geometry, available = geometry_of(wanted.model, backend=wanted.backend), available_bytes()
    except MemoryUnknown as error:
        raise PreflightRefused("failed", str(error)) from error
    fits = list(fits_of(wanted, geometry, available=available))
    for fit in fits:
        say(f"preflight {fit.text()}")
    for why in limits_broken(wanted, geometry):
        raise PreflightRefused("does not fit", why)
    if bad := [fit for fit in fits if not fit.fits]:
        raise PreflightRefused("does not fit", f"{len(bad)} of {len(fits)} cells, first {bad[0].text()}")
    return fits


def fits_of(wanted: CurveSettings, geometry: Geometry, *, available: int) -> Iterator[Fit]:
    """What each cell needs."""
    for cell in cells_of(wanted):
        longest = lengths_of(cell.arm, wanted).longest
        yield Fit(cell, longest, need_of(geometry, num_rows=cell.batch, longest=longest, dense=True), available)


def limits_broken(wanted: CurveSettings, geometry: Geometry) -> Iterator[str]:
    """Settings that would bound a cell by something else than what is compared."""
    longest = max(lengths_of(cell.arm, wanted).longest for cell in cells_of(wanted))
    if longest > geometry.max_position:
        yield f"rows of {longest} tokens; the model was made for {geometry.max_position}"
    if max(wanted.batch) > wanted.max_num_seqs:
        yield f"max_num_seqs is {wanted.max_num_seqs} and would bound {max(wanted.batch)} workers"
    if wanted.output_tokens_min > wanted.output_tokens_max:
        yield f"output_tokens_min {wanted.output_tokens_min} is above output_tokens_max {wanted.output_tokens_max}"


def _check_parts() -> None:
    if find_spec("matplotlib") is None:
        raise PreflightRefused("missing", "matplotlib, which draws the curve: pip install 'drumline[bench]'")


def _run_check(command: str) -> None:
    """The user's own check of the machine."""
    if not command:
        return
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=_CHECK_S, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise PreflightRefused("missing", f"there is no {command!r}") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise PreflightRefused("failed", f"{command!r}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no words"]
        raise PreflightRefused("failed", f"{command!r} ended with status {done.returncode}: {last[0]}")
