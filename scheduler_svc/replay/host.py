"""A fresh executor to replay on: a child process like the recorded one, or one that somebody else runs."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from drumline.errors import Unavailable
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse

START_TIMEOUT_S: Final = 300.0


def flags_for(caps: GetCapabilitiesResponse) -> list[str]:
    """Flags that make an executor like the recorded one. The model itself is found by default or named by whoever replays."""
    numbers = {
        "--max-model-len": caps.max_model_len,
        "--max-num-seqs": caps.max_num_seqs,
        "--max-num-batched-tokens": caps.max_num_batched_tokens,
        "--num-blocks": caps.num_blocks,
        "--block-size": caps.block_size,
    }
    flags = [word for flag, value in numbers.items() for word in (flag, str(value))]
    if caps.device == "fake":
        return [*flags, "--backend", "fake"]
    # recordings made before the cache had a type of its own were made in float32
    return [*flags, "--precision", caps.precision, "--kv-cache-dtype", caps.kv_cache_dtype or "float32"]


@contextlib.contextmanager
def child_executor(caps: GetCapabilitiesResponse, *, extra: Sequence[str] = ()) -> Iterator[str]:
    """Starts `python -m executor_svc` on a free loopback port; its `host:port`. It ends with the `with` block.

    Raises Unavailable when it does not come up.
    """
    # -P: as in `serve`, a folder named executor_svc where the user happens to stand is not our executor
    command = [sys.executable, "-P", "-m", "executor_svc", "--host", "127.0.0.1", "--port", "0", *flags_for(caps), *extra]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _target(process)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _target(process: "subprocess.Popen[str]") -> str:
    # a read has no timeout: ending a silent child is what ends it
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        for line in process.stdout or ():
            words = line.split()
            if words[:2] == ["READY", "executor"]:
                return words[2]
        raise Unavailable(f"the executor to replay on did not start (exit status {process.wait()}); its log is above")
    finally:
        timer.cancel()
