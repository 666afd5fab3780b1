"""`drumline bench peers` end to end: the fake executor's Drumline, and beside it another one in a peer's place, both over HTTP."""

import sys
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from bench import peers
from bench.peers_contestant import Peer, tree_of
from bench.peers_http import OverHttp, model_of
from bench.peers_install import Install
from bench.server import Server, started

FLAGS = ["--backend", "fake"]
PIDS: list[int] = []


@asynccontextmanager
async def another(site):
    async with started(FLAGS, log=site.log) as server:
        PIDS.append(server.launcher_pid)
        yield OverHttp(Server(server.url, server.launcher_pid, whole=True), await model_of(server.url))


@asynccontextmanager
async def refusing(site):
    async with peers.OPENVINO.standing(site) as it:  # this interpreter has no openvino: its worker ends
        yield it


@pytest.fixture
def installed_peers(tmp_path, monkeypatch) -> Path:
    """Two peers whose environment is this one."""
    bin_folder = tmp_path / "venvs" / "here" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (bin_folder / "python").chmod(0o755)
    install = Install("psutil", version("psutil"))
    two = {
        "llama.cpp": Peer(name="llama.cpp", venv="here", weights="none", install=install, standing=another),
        "openvino": Peer(name="openvino", venv="here", weights="none", install=install, standing=refusing, in_process=True),
    }
    monkeypatch.setattr(peers, "PEERS", two)
    return tmp_path / "venvs"


def test_it_compares_over_http_and_says_who_failed(installed_peers, tmp_path, capsys):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"the fake executor reads no model")
    files = ["--markdown-file", str(tmp_path / "p.md"), "--json-file", str(tmp_path / "p.json")]
    words = ["--quick", "--venvs", str(installed_peers), "--model", str(model), "--repetitions", "2", "--retries", "0", *files]
    chosen = ["--peer", "llama.cpp", "--peer", "openvino", "--workload", "W6c", "--workload", "W6w", "--no-perplexity"]
    assert peers.main([*words, *chosen, "--", *FLAGS]) == 0
    told = (tmp_path / "p.md").read_text()
    assert "| W6w | llama.cpp * | " in told
    assert "openvino: no more figures: it did not start: it ended with status 1: ModuleNotFoundError" in told
    assert "W6c" in capsys.readouterr().out
    assert PIDS
    assert not tree_of(PIDS[-1]), "a suspended peer is ended too"
