"""Where a figure comes from. A figure without this is not written anywhere."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.report import NA, machine
from drumline.version import SOFTWARE_VERSION


@dataclass(frozen=True, slots=True)
class Provenance:
    """What was run on what.

    Attributes:
        kind: `cpu` or `gpu` where a model ran, `sim` where the executor was the fake one: its times say nothing about a device.
        precision, device: the executor's own words.
        machine: processors, as the system names them.
    """

    kind: str
    precision: str
    device: str
    machine: str
    model: str
    version: str = SOFTWARE_VERSION

    def tag(self) -> str:
        """For a table's title and for each row of a file."""
        return f"{self.kind}, {self.precision}, {self.model}, {self.machine}, drumline {self.version}"

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def provenance_of(executor: Mapping[str, Any], *, model: str) -> Provenance:
    """From an executor's entry in the status."""
    device, precision = str(executor.get("device") or NA), str(executor.get("precision") or NA)
    kind = "sim" if device == "fake" else "cpu" if device.startswith("cpu") else "gpu"
    return Provenance(kind=kind, precision=precision, device=device, machine=machine(), model=model)
