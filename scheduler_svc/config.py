"""Settings of the scheduler service. Flags, TOML keys and environment names follow from field names: `drumline.settings`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from drumline.limits import MAX_TIMEOUT_MS, MAX_TRACE_SEGMENT_BYTES
from drumline.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """Everything that one scheduler process can be told."""

    host: str = Field(default="127.0.0.1", description="Address that gateways dial; loopback unless told otherwise.")
    port: int = Field(default=7001, ge=0, le=65535, description="Port that gateways dial; 0 = any free one.")
    executor: tuple[str, ...] = Field(
        default=(), description="Executor to dial, host:port; repeat it. A name with several addresses is one executor each."
    )
    max_num_seqs: int = Field(default=64, ge=1, description="Most sequences resident on one executor.")
    max_num_batched_tokens: int = Field(default=512, ge=1, description="Most tokens fed to one executor in one step.")
    prefill_chunk: int = Field(default=0, ge=0, description="Longest prompt chunk of one row in one step, tokens; 0 = the budget.")
    admission: Literal["paged", "bucketed", "ragged"] = Field(
        default="paged",
        description="Who shares a step. paged: rows of any length. bucketed: one cache length a step. "
        "ragged: completions of any length where an executor allows it, prompts by length.",
    )
    layout: Literal["paged", "aligned", "stripped"] = Field(
        default="paged", description="How executors keep a cohort's rows; aligned and stripped need --admission bucketed or ragged."
    )
    cadence: Literal["auto", "on_change", "every_step"] = Field(
        default="auto", description="When a batched cache is assembled; auto = as the layout needs it, anything else must agree."
    )
    prefill_floor: int = Field(
        default=8,
        ge=0,
        description="ragged: decisions after which who waits goes first, a prompt beside many completions above all; 0 = never.",
    )
    drafts: Literal["adaptive", "fixed", "off"] = Field(
        default="adaptive",
        description="How many tokens executors with a drafter guess ahead. adaptive: as long as the chance that one counts "
        "is worth what it costs. fixed: always their --mtp-depth. off: none. Answers do not depend on it.",
    )
    advance: Literal["per_sequence", "cohort"] = Field(
        default="per_sequence",
        description="How rows with drafts move. per_sequence: each by what it accepted. cohort: all by what the slowest did, to "
        "compare with. Answers do not depend on it.",
    )
    enable_prefix_caching: bool = Field(default=True, description="Reuse the KV blocks of prompts that begin alike.")
    plans_in_flight: int = Field(default=2, ge=1, le=8, description="Plans sent to an executor and not yet answered.")
    max_waiting_requests: int = Field(default=2048, ge=1, description="Sequences that may wait for a first slot; more get 429.")
    max_moves: int = Field(
        default=3,
        ge=1,
        description="A sequence that ran on this many executors when they died ends with an error, as their likely killer.",
    )
    max_waiting_tokens: int = Field(
        default=2_000_000, ge=1, description="Prompt tokens that may wait for a first slot; more get 429."
    )
    default_timeout_s: float = Field(
        default=600.0, gt=0, le=MAX_TIMEOUT_MS / 1000, description="Time to live of a sequence that names none, seconds."
    )
    want_digests: bool = Field(default=False, description="Ask executors for a digest per row; a replay can then compare states.")
    record: Path | None = Field(default=None, description="Folder for recordings; none = only the ring of the last steps is kept.")
    record_segment_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=65536,
        le=MAX_TRACE_SEGMENT_BYTES,
        description="Size at which a recording starts a new segment.",
    )
    record_max_bytes: int = Field(
        default=4 * 1024**3, ge=65536, description="Size of a recording above which its oldest segments are removed."
    )
    drain_timeout_s: float = Field(default=30.0, ge=0, description="How long running sequences may finish after SIGTERM, seconds.")
    stall_timeout_s: float = Field(default=1.0, gt=0, description="Silence of an executor after which it is probed, seconds.")
    probe_timeout_s: float = Field(default=1.5, gt=0, description="An executor that does not answer a probe for this long is lost.")
    step_timeout_s: float = Field(
        default=120.0, gt=0, description="An executor that answers probes but finishes no step for this long is lost, seconds."
    )
    connect_timeout_s: float = Field(default=5.0, gt=0, description="Longest handshake with an executor, seconds.")
    reconnect_max_s: float = Field(default=2.0, gt=0, description="Longest pause between two tries to reach an executor, seconds.")
    resolve_interval_s: float = Field(default=2.0, gt=0, description="How often executor names are resolved again, seconds.")
    throughput_log: bool = Field(default=False, description="Log tokens per second, hit rate, running and waiting rows.")
    throughput_log_interval_s: float = Field(default=5.0, gt=0, description="Window of the throughput log, seconds.")
    metrics_host: str = Field(default="127.0.0.1", description="Address of the Prometheus exposition.")
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of the Prometheus exposition; none = off, 0 = any free one."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least severe messages logged.")
