"""Where steps spend their time: what makes "executor idle between steps" a number."""

from dataclasses import dataclass

from scheduler_svc.wire import StepTimes


@dataclass(slots=True)
class StepAccounts:
    """Where the steps of one executor's address spent their time, ns. Totals only rise.

    A step's life is wire + queue (behind earlier plans on the executor) + device. Idle is the executor's own time without a plan
    in hand, counted only while the scheduler had something for it to run.
    """

    num_steps: int = 0
    queue_ns: int = 0
    wire_ns: int = 0
    device_ns: int = 0
    idle_ns: int = 0
    busy_ns: int = 0
    """Wall time in which something could run: finished stretches; see `runnable_ns`."""
    _work_since_ns: int = 0
    _last_ns: int = 0

    def submitted(self, now_ns: int) -> None:
        """A plan was sent."""
        self._work_since_ns = self._work_since_ns or now_ns
        self._last_ns = now_ns

    def answered(self, now_ns: int, *, sent_ns: int, times: StepTimes) -> None:
        """A plan that was sent at `sent_ns` returned."""
        self.num_steps += 1
        self.queue_ns += times.queue_ns
        self.device_ns += times.device_ns
        self.wire_ns += max(0, now_ns - sent_ns - times.queue_ns - times.device_ns)
        # before the work began the executor was rightly idle
        self.idle_ns += min(times.idle_ns, max(0, sent_ns - self._work_since_ns))
        self._last_ns = now_ns

    def workless(self) -> None:
        """Nothing is in flight and nothing can run here."""
        if self._work_since_ns:
            self.busy_ns += max(0, self._last_ns - self._work_since_ns)
            self._work_since_ns = 0

    def runnable_ns(self) -> int:
        """Wall time so far in which something could run."""
        return self.busy_ns + (max(0, self._last_ns - self._work_since_ns) if self._work_since_ns else 0)

    def idle_fraction(self) -> float | None:
        """Share of `runnable_ns` without a plan in hand; None before the first step."""
        runnable_ns = self.runnable_ns()
        return min(1.0, self.idle_ns / runnable_ns) if self.num_steps and runnable_ns else None
