"""Turns on servers that are not there: who goes when, what is repeated, and what a failure costs."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.progress import Progress

from bench import peers_turns
from bench.client import BenchError, Streamed
from bench.measure import Measured
from bench.peers_config import PeersSettings
from bench.peers_contestant import Peer, Site
from bench.peers_install import Install
from bench.peers_perplexity import perplexity_of, second_half
from bench.peers_results import DRUMLINE, Results
from bench.peers_stage import Stage
from bench.peers_turns import Turns, sittings
from bench.server import Server
from bench.workloads import SHAPES, quickened

SHAPES_SMALL = [quickened(SHAPES[name]) for name in ("W1", "W6c", "W6w")]
WORDS = list(range(1000, 1200))


class House:
    """Peers that write down what they are asked. `trouble`: server -> what its runs raise, "start" = it does not start."""

    def __init__(self, **trouble: str) -> None:
        self.trouble = trouble
        self.asked: list[tuple[str, int]] = []
        self.prompts: list[tuple[int, ...]] = []
        self.starts: list[str] = []

    def peer(self, name: str, *, fresh: bool = False) -> Peer:
        @asynccontextmanager
        async def standing(site):
            self.starts.append(name)
            if self.trouble.get(name) == "start":
                raise BenchError("no such processor")
            yield Contestant(self, name)

        return Peer(name=name, venv=name, weights="none", install=Install(name, "1"), standing=standing, fresh=fresh)


class Contestant:
    server = Server("http://127.0.0.1:9")

    def __init__(self, house: House, name: str) -> None:
        self._house = house
        self._name = name

    async def run(self, streams):
        if not streams:
            return []
        self._house.asked.append((self._name, len(streams)))
        self._house.prompts += [request.prompt for stream in streams for request in stream]
        if self._house.trouble.get(self._name) == "slow":
            await asyncio.sleep(60)
        if self._house.trouble.get(self._name) == "run":
            raise BenchError("asked for 16 tokens, got 3")
        return [Streamed(1.0, 2.0, [1.5, 2.0], 2)]


async def play(house: House, monkeypatch, *peers: Peer, noise=(), **settings) -> Results:
    """All turns; `noise` is the others' share of run after run."""
    monkeypatch.setattr("bench.peers_stage._SETTLE_S", 0.0)
    left = list(noise)

    async def measured(run, *, watch) -> Measured:
        await run()
        share = left.pop(0) if left else 0.0
        return Measured(100.0 + len(left), 16, 1.0, 0.1, 0.1, 0.1, 0.1, 0.0, share, {"server": 1.0}, {"server": 1})

    monkeypatch.setattr(peers_turns, "measured", measured)
    results = Results()
    site = Site(Path(), Path(), Path(), Path())
    wanted = PeersSettings.model_validate(settings)
    async with Stage(peers, {peer.name: site for peer in peers}, flags=[], seed=0) as stage:
        stage.words = WORDS
        await Turns(stage, results, wanted, Progress(disable=True)).play([peer.name for peer in peers], SHAPES_SMALL)
    return results


def test_a_warm_workload_follows_its_cold_one_on_the_same_server():
    assert [[shape.name for shape in group] for group in sittings(SHAPES_SMALL)] == [["W1"], ["W6c", "W6w"]]


async def test_every_server_has_one_turn_in_each_repetition_and_who_goes_first_changes(monkeypatch):
    house = House()
    results = await play(house, monkeypatch, house.peer("a"), house.peer("b"), repetitions=2)
    assert [(run.workload, run.server, run.repetition) for run in results.runs] == [
        *[("W1", "a", 0), ("W1", "b", 0), ("W1", "b", 1), ("W1", "a", 1)],
        *[("W6c", "a", 0), ("W6w", "a", 0), ("W6c", "b", 0), ("W6w", "b", 0)],
        *[("W6c", "b", 1), ("W6w", "b", 1), ("W6c", "a", 1), ("W6w", "a", 1)],
    ]
    assert house.starts == ["a", "b"]


async def test_a_fresh_peer_is_started_for_each_workload(monkeypatch):
    house = House()
    await play(house, monkeypatch, house.peer("a", fresh=True), repetitions=2)
    assert house.starts == ["a", "a"]


async def test_a_disturbed_run_is_repeated_with_another_text_and_the_quietest_counts(monkeypatch):
    house = House()
    results = await play(house, monkeypatch, house.peer("a"), repetitions=1, retries=2, noise=[0.3, 0.2, 0.4])
    one = results.of("a", "W1")
    assert [run.measured.others_share for run in one] == [0.2]
    assert one[0].noisy
    assert results.of("a", "W6c")[0].measured.others_share == 0.0
    assert len(set(house.prompts)) == len(house.prompts), "no prefix cache may know a text"


@pytest.mark.parametrize(("trouble", "why"), [("run", "got 3"), ("slow", "longer than 0.05 s")])
async def test_a_server_that_fails_is_left_out_of_that_workload_alone(monkeypatch, trouble, why):
    house = House(bad=trouble)

    async def cold(self, name):
        """The house is bad from its first request on."""

    monkeypatch.setattr(Stage, "warm_up", cold)
    results = await play(house, monkeypatch, house.peer("bad"), house.peer("good"), repetitions=2, run_timeout_s=0.05)
    assert {(server, name) for server, name in results.failures} == {("bad", shape.name) for shape in SHAPES_SMALL}
    assert all(why in told for told in results.failures.values())
    assert {run.server for run in results.runs} == {"good"}
    assert house.starts.count("bad") == 2, "each workload gives it another chance"


async def test_a_server_that_does_not_start_is_tried_once(monkeypatch):
    house = House(bad="start")
    results = await play(house, monkeypatch, house.peer("bad"), house.peer("good"), repetitions=2)
    assert results.failures == {("bad", ""): "it did not start: no such processor"}
    assert house.starts == ["bad", "good"]
    assert results.best_peer("W1") is None or DRUMLINE not in results.standings


class Scorer:
    """Every token of a window of six has the log-probability of its place."""

    server = Server("")

    async def run(self, streams):
        return []

    async def score(self, window):
        return [-float(place) for place in range(1, len(window))]


async def test_perplexity_is_of_the_second_half_as_llama_cpp_has_it():
    """Tokens 4 and 5 of 0 to 5: of 512 it would be 257 to 511."""
    assert len(second_half([0.0] * 511)) == 255
    assert await perplexity_of(Scorer(), [[0] * 6]) == pytest.approx(2.718281828459045**4.5)
