"""The default model starts and answers where torch cannot be imported: a start does not wait for it."""

import subprocess
import sys

from executor_svc.model.precision import INTEGERS

CODE = """
import sys

sys.modules["torch"] = None
from executor_svc.__main__ import make_backend
from executor_svc.canary import canary_batch
from executor_svc.config import ExecutorSettings

backend = make_backend(ExecutorSettings(backend="auto", num_blocks=64, num_threads=1))
sampled = backend.forward(canary_batch(backend.model, backend.info))
print(backend.info.precision, len(sampled.token_ids), sampled.row_errors)
"""


def test_the_default_model_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    precision, *answer = done.stdout.split(maxsplit=2)
    assert precision in INTEGERS
    assert answer == ["1", "{}\n"]
