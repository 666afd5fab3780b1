"""`python -m scheduler_svc`: one scheduler process, from settings to exit status."""

import asyncio
import logging
import sys

from drumline import logs, settings, startup
from drumline.errors import DrumlineError
from scheduler_svc import garbage
from scheduler_svc.config import SchedulerSettings
from scheduler_svc.process import serve


def main(argv: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT, then drains. Returns 0, or 1 with the reason on stderr after a defect or a takeover."""
    options = settings.load(SchedulerSettings, section="scheduler", argv=sys.argv[1:] if argv is None else argv)
    logs.configure("scheduler", level=options.log_level)
    startup.exit_on_signals()
    garbage.calm()
    try:
        _run(options)
    except DrumlineError as error:
        logging.getLogger(__name__).critical("scheduler stops code=%s reason=%s", error.code, error.message)
        return 1
    except Exception:
        logging.getLogger(__name__).critical("scheduler stops: a defect", exc_info=True)
        return 1
    return 0


def _run(options: SchedulerSettings) -> None:
    if sys.platform == "win32":
        asyncio.run(serve(options))
        return
    import uvloop

    uvloop.run(serve(options))


if __name__ == "__main__":
    sys.exit(main())
