"""`python -m gateway`: one gateway process. Prints `READY gateway host:port` once it answers; SIGTERM drains and exits with 0."""

import gc
import sys

import uvloop

from drumline import logs, settings, startup
from gateway.config import GatewaySettings
from gateway.server import HttpServer


def main(argv: list[str] | None = None) -> int:
    """Runs until it is told to stop. Returns the exit status."""
    config = settings.load(GatewaySettings, section="gateway", argv=sys.argv[1:] if argv is None else argv)
    logs.configure("gateway", level=config.log_level)
    startup.exit_on_signals()
    try:
        server = HttpServer(config)
    except (OSError, settings.SettingsError) as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201
        return 1
    # What was built by now lives as long as the process. Looked through again and again, it doubles the time of a large body.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    uvloop.run(_serve(server, config))
    return 0


async def _serve(server: HttpServer, config: GatewaySettings) -> None:
    def announce() -> None:
        print(f"READY gateway {config.host}:{server.port}", flush=True)  # noqa: T201

    server.stop_on_signals()
    await server.serve(on_started=announce)


if __name__ == "__main__":
    sys.exit(main())
