"""An executor that is told of a model that is not there."""

import subprocess
import sys


def test_a_model_that_is_not_there_is_told_in_plain_words() -> None:
    command = [sys.executable, "-P", "-m", "executor_svc", "--model", "nowhere", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("there is no model file or folder 'nowhere'")
    assert "internal" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
