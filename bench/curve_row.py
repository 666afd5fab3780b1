"""One row of the curve's results. What is not known is NA with its reason, never 0."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bench.curve_cells import Cell
from bench.curve_window import Window
from bench.report import NA
from bench.steps import Summary

FIGURES: Final[Mapping[str, int]] = {
    "tok_s": 2,
    "total_tok_s": 2,
    "decode_tok_s": 2,
    "decode_rows": 2,
    "running": 2,
    "waiting": 2,
    "copies_per_step": 1,
    "window_s": 1,
    "requests": 0,
    "output_tokens": 0,
    "prompt_tokens": 0,
    "others_share": 3,
    "rss_mib": 0,
}
"""Name -> digits in the TSV. tok_s: output tokens per second of the window. total_tok_s: with prompts. decode_tok_s: rows of decode
steps over their time on the executor. decode_rows: rows per decode step. running, waiting: means of the scheduler's gauges."""
COLUMNS: Final = ("arm", "admission", "lengths", "batch", *FIGURES, "grant", "refusal", "why_na", "provenance")


@dataclass(frozen=True, slots=True)
class Row:
    """A measured cell, or one that could not be measured.

    Attributes:
        values: figures by name; one that is not there is NA.
        reasons: for each figure that is not there, why; "" as a name = for all of them.
        grant: the scheduler's decision and reason. refusal: the line in which it could not honour something, or "".
    """

    cell: Cell
    values: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    grant: str = NA
    refusal: str = ""
    provenance: str = NA

    def get(self, name: str) -> float | None:
        """A figure, None = NA."""
        return self.values.get(name)

    def why(self, name: str) -> str:
        """Why a figure is NA."""
        return self.reasons.get(name) or self.reasons.get("") or "it was not measured"

    def tsv(self) -> str:
        """One line, in the order of COLUMNS."""
        arm = self.cell.arm
        figures = [f"{self.values[name]:.{digits}f}" if name in self.values else NA for name, digits in FIGURES.items()]
        why = "; ".join(f"{name or 'all'}: {reason}" for name, reason in self.reasons.items())
        texts = [
            arm.letter,
            arm.admission,
            arm.lengths,
            str(self.cell.batch),
            *figures,
            self.grant,
            self.refusal,
            why,
            self.provenance,
        ]
        return "\t".join(" ".join(text.split()) or "-" for text in texts)

    def as_dict(self) -> dict[str, object]:
        """For JSON; NA is null."""
        arm = self.cell.arm
        about = {"arm": arm.letter, "admission": arm.admission, "lengths": arm.lengths, "batch": self.cell.batch}
        told = {"grant": self.grant, "refusal": self.refusal, "why_na": dict(self.reasons), "provenance": self.provenance}
        return {**about, **{name: self.get(name) for name in FIGURES}, **told}


def row_of(cell: Cell, window: Window, steps: Summary | None, *, grant: str, refusal: str, provenance: str) -> Row:
    """From a window and from the steps in it (None: the recording could not be read)."""
    seconds, output, prompt = window.seconds, window.rise("generation_tokens_total"), window.rise("prompt_tokens_total")
    unseen = "the scheduler exposes no such metric"
    found: dict[str, tuple[float | None, str]] = {
        # a window in which every worker finished a request and no token came is a broken meter, not a rate of 0
        "tok_s": (output / seconds if output else None, unseen if output is None else "no token was counted"),
        "total_tok_s": ((output + prompt) / seconds if output and prompt is not None else None, unseen),
        "decode_tok_s": (steps.decode_tokens_per_s if steps else None, "no decode step is in the recording"),
        "decode_rows": (steps.decode_rows if steps else None, "no decode step is in the recording"),
        "running": (window.mean("num_requests_running"), unseen),
        "waiting": (window.mean("num_requests_waiting"), unseen),
        "copies_per_step": (steps.copies_per_step if steps else None, "no step is in the recording"),
        "window_s": (seconds, ""),
        "requests": (float(window.num_requests), ""),
        "output_tokens": (output or None, unseen if output is None else "no token was counted"),
        "prompt_tokens": (prompt, unseen),
        "others_share": (_others(window), "the server's processes cannot be looked into"),
        "rss_mib": (_rss_mib(window), "the server's processes cannot be looked into"),
    }
    return Row(
        cell=cell,
        values={name: value for name, (value, _) in found.items() if value is not None},
        reasons={name: reason for name, (value, reason) in found.items() if value is None},
        grant=grant,
        refusal=refusal,
        provenance=provenance,
    )


def _others(window: Window) -> float | None:
    return None if window.cost.cpu_s is None else window.cost.others_share(client_s=window.client_s)


def _rss_mib(window: Window) -> float | None:
    return None if window.cost.rss_bytes is None else sum(window.cost.rss_bytes.values()) / 2**20
