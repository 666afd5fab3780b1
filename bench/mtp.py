"""`drumline bench mtp`: servers with drafts and one without answer the same questions in turn; who is how fast, and is a word
different?"""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.client import BenchError
from bench.mtp_config import MtpSettings
from bench.scrape import PREFIX
from bench.server import Server, handed_on, started
from drumline import settings

QUESTIONS: Final = (Path(__file__).parent / "questions.txt").read_text(encoding="utf-8").splitlines()
_SPEC: Final = "spec_decode_"


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to serve: `name` for the table, and its flags."""

    name: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: all questions once.

    Attributes:
        texts: answers, question by question.
        num_drafts, num_draft_tokens, accepted, num_decode_rows, num_decode_tokens: as the scheduler's metrics count them;
            `accepted` by place.
    """

    arm: str
    streams: int
    num_tokens: int
    seconds: float
    texts: tuple[str, ...]
    num_drafts: int
    num_draft_tokens: int
    accepted: tuple[int, ...]
    num_decode_rows: int
    num_decode_tokens: int


def many_questions(count: int) -> list[str]:
    """So many different ones."""
    size = len(QUESTIONS)
    return [QUESTIONS[i % size] if i < size else f"{QUESTIONS[i % size]} (Asked again, {i // size}.)" for i in range(count)]


def arms_of(wanted: MtpSettings) -> list[Arm]:
    """The one without drafts first."""
    arms = [Arm("none", ("--drafts", "off"))]
    for drafter in wanted.drafter:
        for depth in wanted.depth:
            for advance in wanted.advance:
                flags = ("--drafter", drafter, "--mtp-depth", str(depth), "--drafts", wanted.drafts, "--advance", advance)
                arms.append(Arm(f"{drafter} {depth}" + " cohort" * (advance == "cohort"), flags))
    return arms


def main(argv: Sequence[str]) -> int:
    """Runs everything and prints the table; 1 = a server failed, or an answer differed."""
    own, flags = handed_on(list(argv))
    wanted = settings.load(MtpSettings, section="mtp", argv=own)
    try:
        turns = asyncio.run(measure(wanted, flags))
    except (BenchError, httpx.HTTPError, OSError) as error:
        Console(stderr=True).print(f"bench: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table_of(turns))
    different = differences(turns)
    console.print("every answer is equal in all arms" if not different else f"DIFFERENT: {', '.join(different)}", markup=False)
    if wanted.json_file:
        wanted.json_file.write_text(json.dumps([asdict(turn) for turn in turns], indent=1), encoding="utf-8")
    return 1 if different else 0


async def measure(wanted: MtpSettings, flags: Sequence[str]) -> list[Turn]:
    """All servers stand side by side, one at work at a time; who begins changes."""
    arms, turns = arms_of(wanted), list[Turn]()
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for arm in arms:
            servers[arm.name] = await stack.enter_async_context(started([*arm.flags, "--no-enable-prefix-caching", *flags]))
            await _ask(servers[arm.name], wanted, QUESTIONS[:2], streams=2)  # kernels and connections are warm
        for repetition in range(wanted.repetitions):
            order = arms[repetition % len(arms) :] + arms[: repetition % len(arms)]
            for streams in wanted.streams:
                for arm in order:
                    turn = await _turn(arm, servers[arm.name], wanted, streams=streams)
                    turns.append(turn)
                    sys.stderr.write(
                        f"{arm.name}, {streams} streams, {repetition + 1}: {turn.num_tokens / turn.seconds:.1f} tokens/s\n"
                    )
    return turns


async def _turn(arm: Arm, server: Server, wanted: MtpSettings, *, streams: int) -> Turn:
    before = await _drafts(server)
    began_s = time.monotonic()
    answers = await _ask(server, wanted, many_questions(max(wanted.num_questions, streams)), streams=streams)
    seconds = time.monotonic() - began_s
    after = await _drafts(server)
    counts = {name: int(after[name] - before.get(name, 0)) for name in after}
    places = sorted(name for name in counts if name.startswith("accepted"))
    return Turn(
        arm=arm.name,
        streams=streams,
        num_tokens=sum(count for _, count in answers),
        seconds=seconds,
        texts=tuple(text for text, _ in answers),
        num_drafts=counts.get("num_drafts_total", 0),
        num_draft_tokens=counts.get("num_draft_tokens_total", 0),
        accepted=tuple(counts[name] for name in places),
        num_decode_rows=counts.get("num_decode_rows_total", 0),
        num_decode_tokens=counts.get("num_decode_tokens_total", 0),
    )


async def _drafts(server: Server) -> dict[str, float]:
    if not server.metrics_url:
        raise BenchError("the server exposes no metrics")
    async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
        text = (await http.get(server.metrics_url)).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX).removeprefix(_SPEC)
            if "position" in sample.labels and name.endswith("_total"):
                name = f"accepted{sample.labels['position']}"
            if sample.name.startswith(PREFIX + _SPEC):
                found[name] = found.get(name, 0.0) + sample.value
    return found


async def _ask(server: Server, wanted: MtpSettings, questions: Sequence[str], *, streams: int) -> list[tuple[str, int]]:
    """(text, tokens) of each answer."""
    gate = asyncio.Semaphore(streams)
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, trust_env=False, limits=limits) as http:
        model = (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]

        async def one(number: int, question: str) -> tuple[str, int]:
            body: dict[str, Any] = {
                "model": model,
                "messages": [{"role": "user", "content": question}],
                "max_tokens": wanted.max_tokens,
            }
            body |= {"temperature": wanted.temperature}
            if wanted.temperature:
                body |= {"top_p": 0.9, "seed": number + 1}
            async with gate:
                answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
            return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]

        return list(await asyncio.gather(*(one(number, question) for number, question in enumerate(questions))))


def differences(turns: Sequence[Turn]) -> list[str]:
    """Arms, streams and question numbers whose answer is not the one that was given first."""
    truth: dict[int, str] = {}
    return [
        f"{turn.arm} at {turn.streams} streams, question {number + 1}"
        for turn in turns
        for number, text in enumerate(turn.texts)
        if text != truth.setdefault(number, text)
    ]


def table_of(turns: Sequence[Turn]) -> Table:
    """A line for each arm and number of streams; ratios are taken within a repetition."""
    table = Table(
        "streams",
        "drafts",
        "tokens/s",
        "over none",
        "drafts / drafting row",
        "accepted",
        "by place",
        "mean acceptance length",
        "tokens / row and step",
    )
    for streams in sorted({turn.streams for turn in turns}):
        plain = [turn for turn in turns if turn.streams == streams and turn.arm == "none"]
        for arm in dict.fromkeys(turn.arm for turn in turns):
            own = [turn for turn in turns if turn.streams == streams and turn.arm == arm]
            rates = [turn.num_tokens / turn.seconds for turn in own]
            ratios = [rate * base.seconds / base.num_tokens for rate, base in zip(rates, plain, strict=True)]
            table.add_row(str(streams), arm, _spread(rates, 1), "" if arm == "none" else _spread(ratios, 2), *_acceptance(own))
    return table


def _acceptance(turns: Sequence[Turn]) -> tuple[str, str, str, str, str]:
    """n/a where nothing was drafted: no acceptance is not an acceptance of 0. The last is over all decode rows."""
    rows, drafted = sum(turn.num_drafts for turn in turns), sum(turn.num_draft_tokens for turn in turns)
    all_rows, emitted = sum(turn.num_decode_rows for turn in turns), sum(turn.num_decode_tokens for turn in turns)
    per_row = f"{emitted / all_rows:.2f}" if all_rows else "n/a"
    if not rows:
        return "n/a", "n/a", "n/a", "n/a", per_row
    places = [sum(column) for column in zip(*(turn.accepted for turn in turns), strict=True)]
    total = sum(places)
    by_place = ", ".join(f"{count / rows:.2f}" for count in places)
    return f"{drafted / rows:.2f}", f"{100 * total / drafted:.0f} %", by_place, f"{1 + total / rows:.2f}", per_row


def _spread(values: Sequence[float], digits: int) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} .. {high:.{digits}f})"
