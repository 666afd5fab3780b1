"""What is asked of pip, and that an environment which has the version is left alone."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from bench.client import BenchError
from bench.peers import PEERS
from bench.peers_install import Install, commands, installed


def test_a_pinned_requirement_stays_what_it_was_and_what_harms_is_removed():
    install = Install("served", "1.2", first=("torch==2.13.0",), unwanted=("triton",))
    pip = ["v/bin/python", "-m", "pip"]
    assert commands(install, Path("v")) == [
        [sys.executable, "-m", "venv", "--clear", "v"],
        [*pip, "install", "torch==2.13.0"],
        [*pip, "install", "served==1.2", "torch==2.13.0"],
        [*pip, "uninstall", "--yes", "triton"],
    ]


def test_pip_is_told_no_registry_so_that_the_users_own_configuration_holds():
    words = {word for peer in PEERS.values() for command in commands(peer.install, Path("v")) for word in command}
    assert not [word for word in words if "index" in word or "://" in word]


def test_peers_that_share_an_environment_ask_the_same_of_it():
    asked = {(peer.venv, peer.install) for peer in PEERS.values()}
    assert len(asked) == len({venv for venv, _ in asked})


@pytest.fixture
def venv(tmp_path):
    """An environment with this interpreter's packages."""
    (tmp_path / "there" / "bin").mkdir(parents=True)
    (tmp_path / "there" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "there" / "pyvenv.cfg").symlink_to(Path(sys.prefix) / "pyvenv.cfg")
    (tmp_path / "there" / "lib").symlink_to(Path(sys.prefix) / "lib")
    return tmp_path / "there"


async def test_an_environment_with_the_version_is_used_as_it_is(venv):
    assert await installed(Install("psutil", version("psutil")), venv) == venv / "bin" / "python"
    assert not venv.with_name("there.log").exists()


async def test_a_failure_is_told_with_pips_last_words(tmp_path, monkeypatch):
    """Without a network: pip looks into an empty folder only."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(BenchError, match=r"pip install failed: .*no-such-peer==1.0"):
        await installed(Install("no-such-peer", "1.0"), tmp_path / "made")
