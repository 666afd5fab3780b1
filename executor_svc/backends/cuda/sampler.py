"""Chooses tokens of a device's logits. For now on the host, by the CPU twin: the logits of the sampling rows are copied over."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.plan import I32, SampleColumns
from kernels.cpu.sample import sample
from kernels.logprobs_result import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Chosen:
    """token_ids: i32 [S]. scores: log-probabilities, and which rows failed. finite: bool [R], of the rows' last hidden states."""

    token_ids: I32
    scores: TokenLogprobs
    finite: NDArray[np.bool_]


def choose(logits: torch.Tensor, columns: SampleColumns, *, finite: torch.Tensor) -> Chosen:
    """The step's only wait: logits [S or more, num_ids], rows in the order of `columns`, and `finite` bool [R]."""
    host = logits[: len(columns.rows)].to("cpu", torch.float32).numpy()
    token_ids, scores = sample(host, columns=columns, num_valid=host.shape[1])
    return Chosen(token_ids, scores, finite.cpu().numpy())
