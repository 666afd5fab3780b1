"""An executor that is told of a model that is not there."""

import subprocess
import sys

TELL = """
import sys
from executor_svc.__main__ import main
status = main(sys.argv[1:])
sys.exit(10 if "torch" in sys.modules else status)
"""


def test_a_model_that_is_not_there_is_told_in_plain_words() -> None:
    """In a moment, too: before torch is loaded."""
    command = [sys.executable, "-P", "-c", TELL, "--model", "nowhere", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.rstrip().endswith("there is no model file or folder 'nowhere'")
    assert "internal" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
