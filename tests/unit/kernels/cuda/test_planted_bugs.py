"""Every planted bug still has its place in a source, and every family has some. `make kernel-mutants` runs them."""

from pathlib import Path

import pytest

import kernels.cuda
from kernels.cuda.source import flat_source
from kernels.proof.catalogue import STEMS
from tests.mutants.kernels.__main__ import FOLDER, Planted, planted, what_catches

UNCOALESCED = ("at = threadIdx.x * 16;", "at = (threadIdx.x % 32 * 4 + threadIdx.x / 32) * 16;")
SOURCES = [flat_source(path.stem) for path in Path(kernels.cuda.__file__).parent.glob("*.cu")]


def test_every_family_has_planted_bugs():
    assert sorted(path.stem for path in FOLDER.glob("*.toml")) == sorted(STEMS)


@pytest.mark.parametrize("family", STEMS)
def test_every_bug_has_its_place(family):
    for bug in planted(family):
        assert any(bug.old in text for text in SOURCES), bug.what


def test_a_bug_is_told_from_none():
    assert what_catches(Planted("copy_blocks", "nothing", "THREADS", "THREADS")) == ""
    assert "never written" in what_catches(Planted("rms_norm", "no output", "store8(out + row + at, value[i]);", ""))
    assert "times the traffic" in what_catches(Planted("copy_blocks", "uncoalesced", *UNCOALESCED))
