"""`python -m executor_svc`: one executor, one device."""

import asyncio
import ctypes
import importlib.util
import logging
import os
import sys
from pathlib import Path

from drumline import logs, settings, startup
from drumline.errors import DrumlineError
from executor_svc.backends.base import Backend
from executor_svc.config import ExecutorSettings
from executor_svc.lifecycle import Lifecycle, bind
from executor_svc.model.place import check_place
from executor_svc.namesake import check_kernels


def main(argv: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Exit status 0 after a drain, 1 when it cannot serve, 2 for wrong settings."""
    told = settings.load(ExecutorSettings, section="executor", argv=sys.argv[1:] if argv is None else argv)
    logs.configure("executor", level=told.log_level)
    startup.exit_on_signals()
    _set_thread_policy(told.num_threads)
    try:
        return asyncio.run(_serve(told))
    except DrumlineError as error:
        logging.getLogger(__name__).error("%s", error.message)
        return 1


async def _serve(told: ExecutorSettings) -> int:
    """Loading blocks the loop: nobody is served yet, and a signal ends the process at once."""
    bound = bind(told.host, told.port)
    try:
        backend = make_backend(told)
    except BaseException:
        await bound.server.stop(None)
        raise
    return await Lifecycle(backend, bound=bound, drain_timeout_s=told.drain_timeout_s).run()


def make_backend(told: ExecutorSettings) -> Backend:
    """The backend that the settings name. Imports it only now, so that the fake one needs no torch."""
    if told.backend == "fake":
        from executor_svc.backends.fake import FakeBackend, options_of

        return FakeBackend(options_of(told))
    check_kernels()
    if told.model:
        check_place(Path(told.model))
    if told.backend in ("cuda", "emulated") or (told.backend == "auto" and _sees_gpu()):
        from executor_svc.backends.cuda.backend import CudaBackend
        from executor_svc.backends.cuda.place import Emulated, Gpu
        from executor_svc.model.load import open_model

        opened = open_model(Path(told.model) if told.model else None)
        return CudaBackend(opened, told, Emulated() if told.backend == "emulated" else Gpu())
    from executor_svc.backends.cpu import CpuBackend

    return CpuBackend(told)


def _sees_gpu() -> bool:
    """Whether torch and CuPy can both use one: a machine with a GPU and the CPU's packages goes on as a processor."""
    if importlib.util.find_spec("cupy") is None or not _has_driver():
        return False  # and torch, which takes seconds to import, was not asked: the processor may not need it
    import torch

    return torch.cuda.is_available()


def _has_driver() -> bool:
    """Whether the GPU's driver can be loaded; without it no library finds a GPU."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def _set_thread_policy(num_threads: int) -> None:
    """Before torch is imported: waiting threads that spin turned a 0.4 ms matmul into 16 ms on two busy cores."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if num_threads:
        os.environ["OMP_NUM_THREADS"] = str(num_threads)


if __name__ == "__main__":
    raise SystemExit(main())
