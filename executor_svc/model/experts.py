"""A mixture of experts: a router sends each token through the few that it likes best. See `MoeConfig`.

Legend: M rows, H hidden, E experts, C chosen of them, G groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor_svc.model.config import MoeConfig
from executor_svc.model.linear import Linear
from kernels.cpu.gated_mul import silu_mul
from kernels.layout import F32

_LEAST = np.float32(1e-20)


@dataclass(frozen=True, slots=True)
class Expert:
    """One gated feed-forward part. gate_up: hidden -> gate, up, side by side."""

    gate_up: Linear
    down: Linear


class Experts:
    """The routed part of one layer. A row's result is summed in the order of its experts, whatever other rows chose."""

    def __init__(
        self, experts: Sequence[Expert], *, router: F32, bias: F32, config: MoeConfig, pad_rows: Callable[[int], int]
    ) -> None:
        """`router`: f32 [E, H]. `bias`: f32 [E], added to scores when experts are chosen, never to their weights."""
        self._experts = experts
        self._router = np.ascontiguousarray(router)
        self._bias = bias
        self._config = config
        self._pad_rows = pad_rows

    def __call__(self, x: F32) -> F32:
        """f32 [M, H] -> f32 [M, H], the caller's own."""
        chosen, weights = self.route(x)
        out = np.zeros_like(x)
        for index in np.unique(chosen).tolist():
            rows, places = np.nonzero(chosen == index)
            out[rows] += weights[rows, places, None] * self._run(self._experts[index], x[rows])
        return out

    def route(self, x: F32) -> tuple[NDArray[np.intp], F32]:
        """The experts of each row and their weights, [M, C] each."""
        config = self._config
        # einsum's own loop: a library's product would round a row by how many there are
        with np.errstate(over="ignore"):  # the exponential of what is far below 0 is infinite, and its score 0
            scores = np.reciprocal(1 + np.exp(-np.einsum("mh,eh->me", x, self._router)))
        liked = scores + self._bias
        if config.num_chosen_groups < config.num_groups:
            groups = liked.reshape(len(x), config.num_groups, -1)
            best = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1)
            left_out = np.argsort(-best, axis=1, kind="stable")[:, config.num_chosen_groups :]
            np.put_along_axis(groups, left_out[..., None], np.float32(-np.inf), axis=1)
        chosen = np.argsort(-liked, axis=1, kind="stable")[:, : config.num_chosen]
        weights = np.take_along_axis(scores, chosen, axis=1)
        if config.normalise:
            weights = weights / (weights.sum(axis=1, keepdims=True) + _LEAST)
        return chosen, (weights * np.float32(config.scale)).astype(np.float32)

    def _run(self, expert: Expert, x: F32) -> F32:
        count = len(x)
        rows = np.zeros((self._pad_rows(count), x.shape[1]), np.float32)
        rows[:count] = x
        gate_up = expert.gate_up(rows)
        gated = np.empty((len(rows), gate_up.shape[1] // 2), np.float32)
        silu_mul(gate_up, out_TI=gated)
        result: F32 = expert.down(gated)[:count]
        return result
