"""Chooses tokens where the logits are: one copy of parameters there, one of tokens and failures back: the step's only wait.

Legend: S rows that sample, R rows of the step, V ids.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.backends.cuda.place import Place
from executor_svc.plan import I32, SampleColumns
from kernels.cpu.logprobs import token_logprobs
from kernels.cpu.sample import sample
from kernels.cuda.sample import Sampler
from kernels.logprobs_result import TokenLogprobs

_MOST_WORDS: Final = 1 << 20
"""Tokens of history, biases and end ids that a step may send; one with more is sampled on the host, by the CPU twin."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """token_ids: i32 [S]. scores: log-probabilities, and which rows failed. finite: bool [F], as asked."""

    token_ids: I32
    scores: TokenLogprobs
    finite: NDArray[np.bool_]


class DeviceSampler:
    """Owns the buffers of one step's sampling."""

    def __init__(self, place: Place, *, num_ids: int, dtype: torch.dtype, max_rows: int) -> None:
        kind = str(dtype).removeprefix("torch.")
        self._place = place
        self._sampler = Sampler(vocab_size=num_ids, num_valid=num_ids, dtype=kind, max_rows=max_rows, max_words=_MOST_WORDS)
        (count,), _ = self._sampler.inputs
        self._staged = place.host(count, torch.int32)
        self._inputs = torch.zeros(count, dtype=torch.int32, device=place.device)
        self._workspace = {
            name: torch.zeros(shape, dtype=getattr(torch, of), device=place.device)
            for name, (shape, of) in self._sampler.workspace.items()
        }
        self._token_ids = torch.zeros(max_rows, dtype=torch.int32, device=place.device)
        self._failed = torch.zeros(max_rows, dtype=torch.uint8, device=place.device)
        self._fetched = place.host(4 * max_rows, torch.int32)
        place.kernels.prepare(self._sampler.kernel)

    def choose(self, logits: torch.Tensor, columns: SampleColumns, *, finite: torch.Tensor) -> Chosen:
        """`logits` [S or more, V] on the device, rows in the order of `columns`; `finite` bool [F] comes back beside the tokens,
        F at most 2 S or 2 `max_rows`."""
        num_rows, num_end = len(columns.rows), 2 * len(columns.rows)
        if not self._sampler.fits(columns):
            return _on_host(logits, columns, finite=finite)
        token_ids, failed = self._token_ids[:num_rows], self._failed[:num_rows]
        if num_rows:
            words = self._sampler.pack(columns)
            self._staged.numpy()[: len(words)] = words
            self._inputs[: len(words)].copy_(self._staged[: len(words)], non_blocking=True)
            self._sampler.sample(
                self._place.kernels,
                logits,
                inputs=self._inputs,
                workspace=self._workspace,
                token_ids=token_ids,
                failed=failed,
            )
        made = torch.cat([token_ids, failed.int(), finite.int()])
        self._fetched[: len(made)].copy_(made, non_blocking=True)
        self._place.wait()
        host = self._fetched.numpy()[: len(made)].copy()
        chosen, wrong = host[:num_rows], host[num_rows:num_end].astype(np.bool_)
        return Chosen(chosen, _scores(logits, columns, chosen, wrong), host[num_end:].astype(np.bool_))


def _scores(logits: torch.Tensor, columns: SampleColumns, token_ids: I32, failed: NDArray[np.bool_]) -> TokenLogprobs:
    """Log-probabilities of the raw distribution, on the host, of the rows that want them: few, as a rule none."""
    wanted = np.flatnonzero(columns.want_logprobs & ~failed)
    scores = TokenLogprobs.empty(len(failed), num_top=int(columns.num_top[wanted].max(initial=0)))
    scores.failed[:] = failed
    if len(wanted):
        raw = logits[torch.from_numpy(wanted).to(logits.device)].float().cpu().numpy()
        own = token_logprobs(raw, token_ids_S=token_ids[wanted], num_top_S=columns.num_top[wanted], num_valid=raw.shape[1])
        for kept, found in zip(scores, own, strict=True):
            kept[wanted] = found
    return scores


def _on_host(logits: torch.Tensor, columns: SampleColumns, *, finite: torch.Tensor) -> Chosen:
    host = logits[: len(columns.rows)].to("cpu", torch.float32).numpy()
    token_ids, scores = sample(host, columns=columns, num_valid=host.shape[1])
    return Chosen(token_ids, scores, finite.cpu().numpy())
