"""How `pytest -n 2 --dist loadscope` spreads tests: a module stays together, and so does all of tests/e2e, which shares one model.

The marks of `--dist loadgroup` are not read by every pytest that xdist runs under (3.8 under 9.2 drops them), so it is said here.
"""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# As the executor does for itself: torch's threads would otherwise spin while they wait, at ten times the cost of a small step
# on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class ByServer(LoadScopeScheduling):
    """Tests that share a server run in one worker."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.split("::", 1)[0]
        return "tests/e2e" if module.startswith("tests/e2e/") else module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Two real models on two cores would only wait for each other."""
    return ByServer(config, log) if config.getoption("dist") == "loadscope" else None
