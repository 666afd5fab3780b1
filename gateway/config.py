"""Settings of the gateway service. Flags, TOML keys and environment names follow from the field names; see `drumline.settings`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from drumline.limits import MAX_TIMEOUT_MS
from drumline.settings import ServiceSettings, SettingsError


class GatewaySettings(ServiceSettings):
    """Everything that one gateway process can be told."""

    host: str = Field(default="127.0.0.1", description="Address that clients dial; loopback unless told otherwise.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port that clients dial; 0 = any free one.")
    scheduler: str = Field(default="127.0.0.1:7001", description="Scheduler to dial, host:port.")
    served_model_name: tuple[str, ...] = Field(
        default=(), description="Name of the model in the API; repeat it for aliases. None = the model's own name."
    )
    api_key: tuple[str, ...] = Field(
        default=(), repr=False, description="Key that clients must send as `Authorization: Bearer`; repeat it. None = no keys."
    )
    api_key_file: Path | None = Field(default=None, description="File with one key a line; `#` starts a comment.")
    cors_origin: tuple[str, ...] = Field(default=(), description="Origin of web pages that may call the API; `*` = any; repeat it.")
    request_timeout_s: float = Field(
        default=600.0, gt=0, le=MAX_TIMEOUT_MS / 1000, description="Time to live of a request, seconds; then it ends with 504."
    )
    body_timeout_s: float = Field(default=60.0, gt=0, description="Longest time a client may take to send a body, seconds.")
    drain_timeout_s: float = Field(default=30.0, ge=0, description="How long live requests may finish after SIGTERM, seconds.")
    reconnect_max_s: float = Field(
        default=2.0, gt=0, description="Longest pause between two tries to reach the scheduler, seconds."
    )
    status_interval_s: float = Field(default=1.0, gt=0, description="How often the scheduler is asked how it is, seconds.")
    max_live_requests: int = Field(default=4096, ge=1, description="Requests in hand at once; more get 429.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least severe messages logged.")

    def keys(self) -> tuple[str, ...]:
        """All API keys, from flags and file. Raises SettingsError for an unreadable file and when keys were meant but none is
        there: no keys lets everybody in, which nobody who names a file or a key has asked for."""
        keys = [*self.api_key, *(_keys_of(self.api_key_file) if self.api_key_file else ())]
        if not all(key.strip() for key in keys):
            raise SettingsError("an API key is empty")
        return tuple(keys)


def _keys_of(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError(f"--api-key-file {path}: {why}") from None
    keys = [key for key in (line.split("#")[0].strip() for line in lines) if key]
    if not keys:
        raise SettingsError(f"--api-key-file {path}: holds no key")
    return keys
