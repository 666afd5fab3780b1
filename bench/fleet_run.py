"""One fleet, from its start to its figures: a real scheduler, fake executors, a gateway that reads every token."""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.children import Child, running
from bench.client import BenchError
from bench.echo import PROMPT_LENGTHS
from bench.fleet_config import FleetSettings
from bench.processors import ProcessorMeter, Used
from bench.reader import TokenReader, greeted

_FILL_S: Final = 30.0
"""Longest time until every row decodes."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What one fleet did in its window.

    Attributes:
        seen: as `bench.echo_process.summary_of` tells it. used: processor time of `scheduler`, `executors`, `reader`.
        num_read: tokens that the gateway read; num_due: those that the fleet emits if it never waits.
    """

    executors: int
    seen: dict[str, float]
    used: Used
    num_read: int
    num_due: int


async def measure(wanted: FleetSettings, *, executors: int) -> Fleet:
    """Starts the fleet, fills it, watches a window. Raises BenchError: a process ended, rows were lost, or not all decode."""
    steps = math.ceil(1000 * (_FILL_S + wanted.warm_up_s + wanted.window_s) / wanted.step_ms)
    async with AsyncExitStack() as stack:
        length = steps + 2 * PROMPT_LENGTHS
        fakes = await stack.enter_async_context(
            running("bench.echo_process", *_flags(executors, wanted=wanted), "--max-model-len", str(length))
        )
        addresses = (await fakes.line()).split()
        scheduler = await stack.enter_async_context(running("scheduler_svc", *scheduler_flags(addresses, rows=wanted.rows)))
        port = int((await scheduler.line()).rpartition(":")[2])
        num_rows = executors * wanted.rows
        reader = await stack.enter_async_context(greeted(port, executors=executors, num_rows=num_rows, max_tokens=steps))
        async with _reading(reader) as reading:
            await _fill(reader, reading, at_once=4 * executors)
            await _sleep(wanted.warm_up_s, reading)
            meter = ProcessorMeter({"scheduler": scheduler.pid, "executors": fakes.pid, "reader": os.getpid()})
            return await _watch(wanted, reader, reading, fakes=fakes, meter=meter, executors=executors)


async def _watch(
    wanted: FleetSettings,
    reader: TokenReader,
    reading: "asyncio.Task[None]",
    *,
    fakes: Child,
    meter: ProcessorMeter,
    executors: int,
) -> Fleet:
    fakes.say("begin")
    meter.begin()
    num_read = reader.num_tokens
    await _sleep(wanted.window_s, reading)
    num_read, used = reader.num_tokens - num_read, meter.end()
    seen: dict[str, float] = await fakes.answer("end")
    return Fleet(executors, seen, used, num_read, int(executors * wanted.rows * used.wall_s * 1000 / wanted.step_ms))


def scheduler_flags(addresses: Sequence[str], *, rows: int) -> list[str]:
    """A scheduler as served, with room for all rows, at once if need be."""
    flags: dict[str, Any] = {
        "--port": 0,
        "--max-num-seqs": rows,
        "--max-num-batched-tokens": rows * PROMPT_LENGTHS,
        "--max-waiting-requests": rows * len(addresses),
        "--max-waiting-tokens": rows * len(addresses) * PROMPT_LENGTHS,
        "--log-level": "warning",
    }
    texts = [text for name, value in flags.items() for text in (name, str(value))]
    return [*texts, *(text for address in addresses for text in ("--executor", address))]


def _flags(executors: int, *, wanted: FleetSettings) -> list[str]:
    return ["--executors", str(executors), "--rows", str(wanted.rows), "--step-ms", str(wanted.step_ms)]


@asynccontextmanager
async def _reading(reader: TokenReader) -> AsyncIterator["asyncio.Task[None]"]:
    """Reads on beside the caller."""
    task = asyncio.create_task(reader.read_on())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _fill(reader: TokenReader, reading: "asyncio.Task[None]", *, at_once: int) -> None:
    """Sequences come a few at once: placing a burst of thousands costs the scheduler far longer, and is not measured here."""
    submitting = asyncio.create_task(reader.submit(at_once=at_once))
    try:
        done, _ = await asyncio.wait({submitting, reading}, timeout=_FILL_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if submitting not in done:
            raise BenchError(f"{reader.num_began} of its rows decoded after {_FILL_S:g} s, not all")
    finally:
        submitting.cancel()


async def _sleep(seconds: float, reading: "asyncio.Task[None]") -> None:
    """Raises what ended the reading, if it ends meanwhile."""
    done, _ = await asyncio.wait({reading}, timeout=seconds)
    if done:
        reading.result()
