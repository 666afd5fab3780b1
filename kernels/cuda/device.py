"""Where kernels run: the protocol that all callers use, and the real device, through CuPy."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernels.cuda.source import flat_source
from kernels.cuda.spec import Kernel, pack

Grid = tuple[int, ...]


class Device(Protocol):
    """Something that runs kernels in the order in which they are launched."""

    def prepare(self, kernel: Kernel) -> None:
        """Compiles and loads it now. Must come before a launch that a graph captures."""
        ...

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any]) -> None:
        """Queues the kernel. A grid with a 0 in it is nothing to do.

        Raises ValueError naming the argument that does not fit the kernel's description.
        """
        ...


class CudaDevice:
    """The GPU that is torch's current one. Modules are compiled by NVRTC once and cached on disk by CuPy.

    `current_stream` gives what CuPy can adopt (`__cuda_stream__`), such as `torch.cuda.current_stream`. It is asked at every
    launch: a stream kept from before would record an empty graph.
    """

    def __init__(self, current_stream: Callable[[], Any]) -> None:
        import cupy  # only here: where no GPU is, none of it is needed

        self._cupy = cupy
        self._current_stream = current_stream
        self._modules: dict[object, Any] = {}
        self._functions: dict[Kernel, Any] = {}

    def prepare(self, kernel: Kernel) -> None:
        """See `Device`."""
        self._function(kernel)

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any]) -> None:
        """See `Device`."""
        if 0 in grid:
            return
        stream = self._cupy.cuda.Stream.from_external(self._current_stream())
        function = self._function(kernel)
        function(grid, (kernel.block,), tuple(pack(kernel, args)), shared_mem=kernel.shared_bytes, stream=stream)

    def _function(self, kernel: Kernel) -> Any:
        function = self._functions.get(kernel)
        if function is None:
            module = self._modules.get(kernel.module)
            if module is None:
                module = self._cupy.RawModule(code=flat_source(kernel.source), options=options_of(kernel))
                self._modules[kernel.module] = module
            function = module.get_function(kernel.name)
            if kernel.shared_bytes:  # with what is static it may go beyond the 48 KiB that need no asking
                function.max_dynamic_shared_size_bytes = kernel.shared_bytes
            self._functions[kernel] = function
        return function


def options_of(kernel: Kernel) -> tuple[str, ...]:
    """What the compiler is told, but for the architecture. No fast-math: a kernel says itself where it rounds."""
    return ("--std=c++17", *(f"-D{name}={value}" for name, value in kernel.defines))
