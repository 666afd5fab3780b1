"""The draft head in torch, as it is trained: several applications of itself at once, each seeing what it would see when it drafts.

In inference, application j at position p has the state of application j - 1 at p - 1 in place of the target's, and its attention
sees the head's own keys: those of positions up to p - j from the target's states, the ones behind from its earlier applications.
Training does the same for all positions in parallel (the "training-time test" of EAGLE-3, arXiv:2503.01840, for a chain).

Legend: B dialogues, T positions, H hidden, N heads, K key heads, D head size, V tokens that can be drafted.
"""

import torch
import torch.nn.functional as F
from torch import nn

from executor_svc.model.config import ModelConfig


class DraftModule(nn.Module):
    """Parameters under the names of a head's file, behind `tensors`."""

    def __init__(self, config: ModelConfig) -> None:
        """Weights are zero until `load_state_dict`."""
        super().__init__()
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        self._config = config
        self.hidden_norm, self.embed_norm, self.norm = (nn.Parameter(torch.ones(hidden)) for _ in range(3))
        self.input_layernorm, self.post_attention_layernorm = (nn.Parameter(torch.ones(hidden)) for _ in range(2))
        self.proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.q_proj = nn.Linear(hidden, config.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * dim, hidden, bias=False)
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(
        self, hidden: torch.Tensor, embedded: torch.Tensor, *, cos: torch.Tensor, sin: torch.Tensor, depth: int
    ) -> list[torch.Tensor]:
        """States g of each application, `depth` of [B, T, H].

        `hidden`: [B, T, H], the target's state *before* each position (zeros before the first). `embedded`: [B, T, H], embeddings
        of the tokens at the positions. `cos`, `sin`: [T, D / 2].
        """
        states: list[torch.Tensor] = []
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        before = hidden
        for _ in range(depth):
            state, key, value = self._once(before, embedded, cos=cos, sin=sin, keys=keys, values=values)
            states.append(state)
            keys.append(key)
            values.append(value)
            before = F.pad(state[:, :-1], (0, 0, 1, 0))
        return states

    def _once(
        self,
        before: torch.Tensor,
        embedded: torch.Tensor,
        *,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One application; `keys` and `values` are those of the earlier ones, [B, K, T, D] each."""
        # under autocast products come in bfloat16: what they are added to does not
        residual = self.proj(torch.cat((self._rms(before, self.hidden_norm), self._rms(embedded, self.embed_norm)), dim=-1)).float()
        x = self._rms(residual, self.input_layernorm)
        q = _rotate(self._heads(self.q_proj(x)), cos, sin)
        key = _rotate(self._heads(self.k_proj(x)), cos, sin)
        value = self._heads(self.v_proj(x))
        attended = _attend(q, [*keys, key], [*values, value])
        residual = residual + self.o_proj(attended.transpose(1, 2).flatten(2))
        x = self._rms(residual, self.post_attention_layernorm)
        residual = residual + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return self._rms(residual, self.norm), key, value

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), weight.shape, weight, self._config.rms_eps)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self._config.head_dim).transpose(1, 2)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the names of a head's file."""
        layer = "model.layers.0."
        own = dict(self.named_parameters())
        named = {f"{name}.weight": own[name] for name in ("hidden_norm", "embed_norm", "norm")}
        named |= {f"{layer}{name}.weight": own[name] for name in ("input_layernorm", "post_attention_layernorm")}
        named |= {f"{layer}self_attn.{name}.weight": own[f"{name}.weight"] for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
        named |= {f"{layer}mlp.{name}.weight": own[f"{name}.weight"] for name in ("gate_proj", "up_proj", "down_proj")}
        return named | {"proj.weight": self.proj.weight}


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [B, N, T, D], halves apart."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _attend(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    """Application j sees keys of the first application at positions up to p - j, and of application i at p - j + i.

    [B, N, T, D]; with one application this is causal attention.
    """
    depth, repeat = len(keys) - 1, q.shape[1] // keys[0].shape[1]
    keys = [key.repeat_interleave(repeat, dim=1) for key in keys]
    values = [value.repeat_interleave(repeat, dim=1) for value in values]
    scale, num = q.shape[-1] ** -0.5, q.shape[2]
    scores = q @ keys[0].transpose(-1, -2) * scale
    hidden = torch.ones(num, num, dtype=torch.bool).triu(1 - depth)
    scores = scores.masked_fill(hidden, float("-inf"))
    drawn = []
    for index in range(1, depth + 1):
        shift = depth - index
        near = (q * _shifted(keys[index], shift)).sum(-1, keepdim=True) * scale
        if shift:
            near = torch.cat((torch.full_like(near[:, :, :shift], float("-inf")), near[:, :, shift:]), dim=2)
        drawn.append(near)
    weights = torch.cat((scores, *drawn), dim=-1).softmax(dim=-1)
    attended = weights[..., :num] @ values[0]
    for index in range(1, depth + 1):
        attended = attended + weights[..., num + index - 1 : num + index] * _shifted(values[index], depth - index)
    return attended


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """[B, N, T, D] moved `by` positions back in time, zeros in front."""
    return F.pad(x[:, :, : x.shape[2] - by], (0, 0, by, 0)) if by else x
