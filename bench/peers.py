"""`drumline bench peers`: the same requests to Drumline and to other servers, in turn, on the same model file."""

import asyncio
import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import peers_report
from bench.client import BenchError
from bench.peers_config import PeersSettings, default_venvs
from bench.peers_contestant import Peer, Site
from bench.peers_http import drumline, model_of
from bench.peers_install import installed
from bench.peers_llama import LLAMA
from bench.peers_openvino import OPENVINO, OPENVINO_Q8
from bench.peers_perplexity import perplexity_of, windows_of
from bench.peers_results import DRUMLINE, Results, Standing
from bench.peers_stage import FAILURES, Stage, why
from bench.peers_turns import Turns
from bench.peers_vllm import VLLM
from bench.perplexity_config import TEXT
from bench.server import handed_on
from bench.words import find_words
from bench.workloads import SHAPES, Shape, quickened
from drumline import settings
from drumline.errors import DrumlineError
from launcher.door import wide_console

PEERS: Final = {peer.name: peer for peer in (OPENVINO, OPENVINO_Q8, VLLM, *LLAMA)}


def main(argv: list[str]) -> int:
    """0 = measured and printed, though peers may have failed, which the notes say; 1 = nothing to compare; 2 = wrong settings."""
    own, flags = handed_on(argv)
    wanted = settings.load(PeersSettings, section="peers", argv=own)
    errors = Console(stderr=True)
    shapes = [quickened(SHAPES[name]) if wanted.quick else SHAPES[name] for name in wanted.workload]
    try:
        if wanted.markdown_file:
            peers_report.placed("", wanted.markdown_file)  # before hours of measuring
        results = asyncio.run(compare(wanted, [PEERS[name] for name in wanted.peer], shapes, flags=flags))
        console = wide_console()
        for table in peers_report.tables_of(results, shapes):
            console.print(table)
        for note in peers_report.notes_of(results, shapes):
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        if wanted.json_file:
            told = wanted.model_dump(mode="json", include={"repetitions", "retries", "seed", "model", "quick", "num_windows"})
            wanted.json_file.write_text(peers_report.json_of(results, settings=told, flags=flags), encoding="utf-8")
        if wanted.markdown_file:
            text = peers_report.placed(peers_report.markdown_of(results, shapes), wanted.markdown_file)
            wanted.markdown_file.write_text(text, encoding="utf-8")
    except (DrumlineError, *FAILURES) as error:
        errors.print(f"drumline bench peers: {why(error)}", style="red", markup=False, soft_wrap=True)
        return 1
    return 0


async def compare(wanted: PeersSettings, peers: Sequence[Peer], shapes: Sequence[Shape], *, flags: Sequence[str]) -> Results:
    """Installs, starts and measures. Raises BenchError when Drumline itself does not do what was asked."""
    results = Results({DRUMLINE: Standing(DRUMLINE, "as served")})
    venvs = wanted.venvs or default_venvs()
    venvs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _progress() as progress:
        sites = await _sites(wanted, peers, venvs=venvs, logs=Path(folder), results=results, progress=progress)
        present = [peer for peer in peers if peer.name in sites]
        async with Stage(present, sites, flags=flags, seed=wanted.seed) as stage:
            url, model = await _begin(stage, seed=wanted.seed)
            if wanted.perplexity:
                windows = await windows_of(url, model=model, most=wanted.num_windows)
                await _perplexities(stage, present, sites, windows, results, progress)
            await Turns(stage, results, wanted, progress).play([DRUMLINE, *(peer.name for peer in present)], shapes)
    return results


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


async def _sites(
    wanted: PeersSettings, peers: Sequence[Peer], *, venvs: Path, logs: Path, results: Results, progress: Progress
) -> dict[str, Site]:
    """A site for Drumline and each peer that could be installed; why another could not is in the results."""
    model = _model(wanted)
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    # kept beside the environments: a peer that compiles a model keeps the result by the place where that lay
    scratch = venvs / "copies" / f"{model.stem}-{digest}"
    scratch.mkdir(parents=True, exist_ok=True)
    sites = {DRUMLINE: Site(Path(), model, scratch, logs / f"{DRUMLINE}.log")}
    task = progress.add_task("installing", total=len(peers))
    for peer in peers:
        results.standings[peer.name] = Standing(peer.name, peer.weights, peer.in_process)
        progress.update(task, description=f"installing {peer.name}")
        try:
            python = await installed(peer.install, venvs / peer.venv)
            sites[peer.name] = Site(python, model, scratch, logs / f"{peer.name}.log")
        except Exception as error:
            results.failures[peer.name, ""] = f"it could not be installed: {why(error)}"
        progress.advance(task)
    progress.remove_task(task)
    return sites


def _model(wanted: PeersSettings) -> Path:
    from executor_svc.model.load import default_model

    model = Path(wanted.model) if wanted.model else default_model()
    if model.suffix != ".gguf":
        raise BenchError(f"--model {model}: peers need a GGUF file")
    return model.resolve()


async def _begin(stage: Stage, *, seed: int) -> tuple[str, str]:
    """Starts Drumline and learns its words. Returns its URL and the name of its model."""
    url = (await stage.at_work(DRUMLINE)).server.url
    model = await model_of(url)
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        stage.words = await find_words(http, model=model, seed=seed)
    await stage.warm_up(DRUMLINE)
    return url, model


async def _perplexities(
    stage: Stage, peers: Sequence[Peer], sites: dict[str, Site], windows: list[list[int]], results: Results, progress: Progress
) -> None:
    """Everybody's, and float32's; what cannot be had is told in words."""
    task = progress.add_task("perplexity of float32", total=len(peers) + 2)
    async with drumline(sites[DRUMLINE], ["--precision", "f32"]) as reference:
        results.reference = await perplexity_of(reference, windows)
    progress.console.print(f"perplexity float32: {results.reference:.3f}", highlight=False)
    progress.advance(task)
    for name, peer in {DRUMLINE: None, **{peer.name: peer for peer in peers}}.items():
        progress.update(task, description=f"perplexity of {name}")
        old = results.standings[name]
        try:
            if peer and peer.perplexity_of:
                found = await peer.perplexity_of(sites[name], TEXT, len(windows))
            else:
                found = await perplexity_of(await stage.at_work(name), windows)
            results.standings[name] = Standing(name, old.weights, old.in_process, found)
            progress.console.print(f"perplexity {name}: {found:.3f}", highlight=False)
        except Exception as error:
            results.standings[name] = Standing(name, old.weights, old.in_process, None, why(error))
            await stage.close(name)
        finally:
            stage.rest(name)
        progress.advance(task)
    progress.remove_task(task)
