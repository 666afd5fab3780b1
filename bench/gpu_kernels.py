"""Every case of every kernel on the device, launched by itself and replayed from a graph."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.backends.cuda.place import Place
from kernels.cuda.spec import memory_of
from kernels.proof.case import Case, faults
from kernels.proof.catalogue import STEMS


@dataclass(frozen=True, slots=True)
class Proven:
    """One stem. `wrong` = what was not right, in words; empty = everything was."""

    stem: str
    num_cases: int
    wrong: tuple[str, ...]


def prove_all(place: Place, advance: Callable[[int], None]) -> list[Proven]:
    """Runs all cases of all stems; `advance` is told how many stems are done."""
    results = []
    for stem, cases in STEMS.items():
        wrong, count = [], 0
        for case in cases():
            wrong += [f"{case.name}: {words}" for words in _prove(case, place)]
            count += 1
        results.append(Proven(stem, count, tuple(wrong)))
        advance(len(results))
    return results


def _prove(case: Case, place: Place) -> list[str]:
    """What is wrong with a plain launch, and with one from a graph that starts from the same arrays."""
    start = case.arrays()
    arrays = {name: to_device(array, place.device) for name, array in start.items()}
    case.launch(place.kernels, arrays)
    plain = {name: to_host(tensor) for name, tensor in arrays.items()}
    found = faults(case, plain)
    replay = place.capture(lambda: case.launch(place.kernels, arrays))
    for name, array in start.items():
        arrays[name].copy_(to_device(array, place.device))
    replay()
    place.wait()
    replayed = {name: to_host(tensor) for name, tensor in arrays.items()}
    return found + [f"{name} from a graph differs" for name in case.expected if plain[name].tobytes() != replayed[name].tobytes()]


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A tensor of the same bytes; uint16 is bfloat16, as in all cases."""
    tensor = torch.from_numpy(array.copy())
    return (tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor).to(device)


def to_host(tensor: torch.Tensor) -> NDArray[Any]:
    """The array back; bfloat16 as its bits."""
    host = tensor.cpu()
    array: NDArray[Any] = (host.view(torch.uint16) if memory_of(host).dtype == "bfloat16" else host).numpy()
    return array
