"""The process in which fake executors live: many of them in one, each with a gRPC server and port of its own, so that a fleet's
executors cost a small machine as little as they can. `python -m bench.echo_process` is started by `bench step` and `bench fleet`.

Prints its addresses as one line. Then it reads lines: `begin` starts a window, `end` is answered with what was seen, as JSON; it
ends when its standard input closes.
"""

import argparse
import asyncio
import json
import random
import sys

import numpy as np
import uvloop

from bench.echo import EchoExecutor, Seen
from drumline.executor.v1.executor_pb2_grpc import add_ExecutorServicer_to_server
from drumline.rpc import new_server


def summary_of(seen: list[Seen], *, step_ns: int) -> dict[str, float]:
    """All executors' windows in a few numbers; those of the steps of all together, and the worst executor's idle share."""
    gaps, lates = (np.concatenate([np.asarray(column, np.int64) for column in columns]) for columns in _columns(seen))
    shares = [_idle_share(np.asarray(one.gaps, np.int64), step_ns=step_ns) for one in seen]
    return {
        "num_steps": sum(len(one.lates) for one in seen),
        "num_tokens": sum(one.num_tokens for one in seen),
        "idle_share": _idle_share(gaps, step_ns=step_ns),
        "worst_idle_share": max(shares),
        "gap_p50_ms": _percentile_ms(gaps, 50),
        "gap_p99_ms": _percentile_ms(gaps, 99),
        "gap_max_ms": _percentile_ms(gaps, 100),
        "late_p50_ms": _percentile_ms(lates, 50),
        "late_p99_ms": _percentile_ms(lates, 99),
    }


def _columns(seen: list[Seen]) -> tuple[list[object], list[object]]:
    return [one.gaps for one in seen], [one.lates for one in seen]


def _idle_share(gaps: "np.ndarray[tuple[int], np.dtype[np.int64]]", *, step_ns: int) -> float:
    """Of the time in which rows could run: all of it, since sequences do not end. No step at all is all idle."""
    total = gaps.sum() + len(gaps) * step_ns
    return float(gaps.sum() / total) if total else 1.0


def _percentile_ms(values: "np.ndarray[tuple[int], np.dtype[np.int64]]", percent: int) -> float:
    return float(np.percentile(values, percent) / 1e6) if len(values) else 0.0


async def serve(told: argparse.Namespace) -> None:
    """Until standard input closes."""
    draw, step_ns, server_of = random.Random(told.seed), int(told.step_ms * 1e6), {}
    for number in range(told.executors):
        executor = EchoExecutor(
            name=f"echo-{number}",
            rows=told.rows,
            max_model_len=told.max_model_len,
            step_ns=step_ns,
            phase_ns=int(draw.random() * step_ns),
        )
        server = new_server()
        add_ExecutorServicer_to_server(executor, server)
        server_of[server.add_insecure_port("127.0.0.1:0")] = (server, executor)
        await server.start()
    print(*(f"127.0.0.1:{port}" for port in server_of), flush=True)
    executors = [executor for _, executor in server_of.values()]
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip() == "begin":
            for executor in executors:
                executor.begin()
        else:
            print(json.dumps(summary_of([executor.end() for executor in executors], step_ns=step_ns)), flush=True)
    await asyncio.gather(*(server.stop(0) for server, _ in server_of.values()))


def main(argv: list[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--executors", type=int, default=1)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    uvloop.run(serve(parser.parse_args(argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
