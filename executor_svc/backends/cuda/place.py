"""Where the CUDA backend runs: a GPU, or for its proof the processor with the kernels under the emulator.

Nothing but this file knows which. What differs: host memory that a GPU reads by itself, graphs, waiting, how much memory there is.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

from executor_svc.model.errors import ModelError
from kernels.cuda.device import CudaDevice, Device, Grid
from kernels.cuda.spec import Kernel, Scalar
from kernels.emulator.device import EmulatedDevice

Replay = Callable[[], None]
_EMULATED_BYTES: Final = 1 << 30


class Place(Protocol):
    """See the module.

    Attributes:
        device: where tensors live. kernels: what launches on it. name: for people.
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def kernels(self) -> Device: ...
    @property
    def name(self) -> str: ...

    def host(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeroed host memory [count] that copies to and from the device need not wait for."""
        ...

    def capture(self, step: Callable[[], None]) -> Replay:
        """Runs `step` and gives what runs it again: same launches, same memory; whatever varies must lie in device memory."""
        ...

    def wait(self) -> None:
        """Until everything queued so far is done."""
        ...

    def free_bytes(self) -> int:
        """Device memory that nobody has."""
        ...

    def total_bytes(self) -> int:
        """Device memory altogether."""
        ...


class Gpu:
    """torch's current CUDA device. Raises ModelError when torch sees none."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ModelError("backend cuda: torch sees no CUDA device; on a machine without one use --backend cpu")
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.kernels: Device = CudaDevice(torch.cuda.current_stream)
        self.name = torch.cuda.get_device_name(self.device)
        self._pool: Any = None

    def host(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See `Place`."""
        return torch.zeros(count, dtype=dtype, pin_memory=True)

    def capture(self, step: Callable[[], None]) -> Replay:
        """See `Place`. The first run, on a stream of its own, lets libraries allocate what a capture must not."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        self._pool = graph.pool()
        graph.replay()  # capturing computes nothing
        replay: Replay = graph.replay
        return replay

    def wait(self) -> None:
        """See `Place`."""
        torch.cuda.current_stream().synchronize()

    def free_bytes(self) -> int:
        """See `Place`."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    def total_bytes(self) -> int:
        """See `Place`."""
        return int(torch.cuda.mem_get_info(self.device)[1])


class GraphBroken(RuntimeError):
    """A step launched something else than when it was captured; a real graph would have run the old launches in silence."""


class Emulated:
    """The processor. Slow; proves everything but speed."""

    def __init__(self, kernels: EmulatedDevice | None = None) -> None:
        self.device = torch.device("cpu")
        self.name = "emulated GPU"
        self._noting = _Noting(kernels or EmulatedDevice())
        self.kernels: Device = self._noting

    def host(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See `Place`."""
        return torch.zeros(count, dtype=dtype)

    def capture(self, step: Callable[[], None]) -> Replay:
        """See `Place`. A replay runs `step` again and holds its launches against those of the capture."""
        captured = self._noting.launches_of(step)

        def replay() -> None:
            if (now := self._noting.launches_of(step)) != captured:
                changed = next((pair for pair in zip(captured, now, strict=False) if pair[0] != pair[1]), (len(captured), len(now)))
                raise GraphBroken(f"captured {changed[0]}, now {changed[1]}")

        return replay

    def wait(self) -> None:
        """See `Place`; everything has run already."""

    def free_bytes(self) -> int:
        """See `Place`: a figure to plan with."""
        return _EMULATED_BYTES

    def total_bytes(self) -> int:
        """See `Place`: a figure to plan with."""
        return _EMULATED_BYTES


class _Noting:
    """A device that remembers what a graph freezes of each launch, but for addresses: torch's own vary on the processor."""

    def __init__(self, kernels: EmulatedDevice) -> None:
        self._kernels = kernels
        self._launches: list[tuple[object, ...]] = []

    def prepare(self, kernel: Kernel) -> None:
        self._kernels.prepare(kernel)

    def launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any]) -> None:
        frozen = tuple(value if isinstance(spec, Scalar) else value is None for spec, value in zip(kernel.args, args, strict=True))
        self._launches.append((kernel, grid, frozen))
        self._kernels.launch(kernel, grid, args)

    def launches_of(self, step: Callable[[], None]) -> list[tuple[object, ...]]:
        self._launches = []
        step()
        launches, self._launches = self._launches, []
        return launches
