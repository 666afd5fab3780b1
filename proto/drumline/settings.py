"""Settings: defaults < TOML < DRUMLINE_* environment < flags. A service owns its model; this module only loads it.

STUB until the launcher helper fills `load`: the base class is final.
"""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict


class ServiceSettings(BaseModel):
    """Base of every service's settings: frozen, and an unknown key is an error.

    Field names are flag names (`max_num_seqs` -> `--max-num-seqs`), TOML keys (`[scheduler] max_num_seqs = 64`) and, upper-cased behind
    `DRUMLINE_<SECTION>_`, environment names (`DRUMLINE_SCHEDULER_MAX_NUM_SEQS`). Every field has a description, which is its help text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


S = TypeVar("S", bound=ServiceSettings)


def load(kind: type[S], *, section: str, argv: list[str]) -> S:
    """Settings of one service from all sources; exits with status 2 and the nearest known name on an unknown key."""
    del section, argv
    return kind()
