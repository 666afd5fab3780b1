"""The rooms behind the `drumline` command."""

from typing import Final

ROOMS: Final = {
    "serve": ("launcher.serve", "Start everything: executors, scheduler and gateway."),
    "gateway": ("gateway.__main__", "Run one gateway: HTTP in, tokens to the scheduler."),
    "scheduler": ("scheduler_svc.__main__", "Run one scheduler: decides who runs."),
    "executor": ("executor_svc.__main__", "Run one executor: owns a device and runs plans."),
    "replay": ("launcher.replay", "Replay a recording and name the first difference."),
    "trace": ("launcher.trace", "Show, explain, compare or export a recording."),
    "law": ("launcher.law", "Show the bucket shattering law on the real scheduler core: no device, no model."),
    "probe": ("launcher.probe", "Ask a service whether it is healthy: status 0 or 1, for health checks."),
    "train-draft": ("executor_svc.training.__main__", "Distil a draft head for a model, on its own text."),
    "bench": ("bench.__main__", "Measure a running or a fresh server from outside."),
}
"""Doors that hand everything behind their name to a room's `main(argv) -> int`, whose --help it is, too. Imported when opened."""
