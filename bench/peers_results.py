"""What the runs say: ratios within a repetition, and which peer is the best one of a workload."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.measure import Measured
from bench.price_figures import Spread, spread_of
from bench.report import NOISY_SHARE

DRUMLINE: Final = "drumline"
TOLERANCE: Final = 0.01
"""A peer whose perplexity is further above that of float32 answers something else, and its speed does not count."""


@dataclass(frozen=True, slots=True)
class Run:
    """One server's run of one workload.

    Attributes:
        repetition: runs of one repetition stand beside each other.
        peak_rows, preemptions: Drumline's own account of it; None of a peer.
    """

    server: str
    workload: str
    repetition: int
    measured: Measured
    peak_rows: int | None = None
    preemptions: int | None = None

    @property
    def noisy(self) -> bool:
        """Whether others used so much of the machine that it should be repeated."""
        return self.measured.others_share > NOISY_SHARE


@dataclass(frozen=True, slots=True)
class Standing:
    """A server in the table. `weights`, `in_process` as in Peer; `perplexity` None = not known, and then `reason` says why."""

    name: str
    weights: str
    in_process: bool = False
    perplexity: float | None = None
    reason: str = ""


@dataclass(slots=True)
class Results:
    """Everything that is told.

    Attributes:
        reference: perplexity of float32 on the same windows.
        failures: (server, workload or "" for all of it) -> why there is no figure.
    """

    standings: dict[str, Standing] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    reference: float | None = None
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def of(self, server: str, workload: str) -> list[Run]:
        """Its runs, in the order of repetitions."""
        return [run for run in self.runs if (run.server, run.workload) == (server, workload)]

    def over_reference(self, server: str) -> float | None:
        """Perplexity over float32's, 1 = the same; None where either is not known."""
        perplexity = self.standings[server].perplexity
        return None if perplexity is None or not self.reference else perplexity / self.reference

    def counts(self, server: str) -> bool:
        """Whether a peer can be the best one. One whose perplexity is not known does: the doubt is ours to bear."""
        over = self.over_reference(server)
        return server != DRUMLINE and (over is None or over <= 1 + TOLERANCE)

    def best_peer(self, workload: str) -> str | None:
        """The peer that counts and has the highest median throughput; None when none ran."""
        rates = {
            name: median(run.measured.tokens_per_s for run in runs)
            for name in self.standings
            if self.counts(name) and (runs := self.of(name, workload))
        }
        return max(rates, key=rates.__getitem__, default=None)

    def ratio(self, peer: str, workload: str) -> Spread | None:
        """Drumline's throughput over the peer's, repetition by repetition; None when they never ran beside each other."""
        theirs = {run.repetition: run.measured.tokens_per_s for run in self.of(peer, workload)}
        pairs = [(run.measured.tokens_per_s, theirs.get(run.repetition)) for run in self.of(DRUMLINE, workload)]
        return spread_of([ours / other for ours, other in pairs if other])


def typical(runs: Sequence[Run]) -> Run:
    """The run with the median throughput: latencies and memory of one real run, not a mixture of several."""
    return sorted(runs, key=lambda run: run.measured.tokens_per_s)[(len(runs) - 1) // 2]


def cpu_s(measured: Measured) -> float | None:
    """Processor seconds of the server, all of its services."""
    return None if measured.cpu_s is None else sum(measured.cpu_s.values())


def memory(values: Mapping[str, int] | None) -> int | None:
    """Resident bytes of the server, all of its services."""
    return None if values is None else sum(values.values())
