"""The shape of a decoder, whatever file it came from."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        kind: "default", "linear" (positions divided by `factor`) or "llama3" (low frequencies divided, the middle blended).
        factor, low_freq_factor, high_freq_factor, original_max_position: as in Hugging Face files, for their kind only.
        divisors: what each of the head_dim / 2 frequencies is divided by, when the file lists them itself (GGUF); else empty.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-like decoder: RMS norms, rotary attention with grouped keys, gated feed-forward.

    Attributes:
        windows: for each layer how many tokens a token sees, itself included; 0 = all.
        tied: the head is the embedding.
        qkv_bias: the q, k and v projections have a bias.
        qk_norm: q and k are RMS-normalised head by head before the rotation.
        local_rope: the rotation of layers that have a window; None = `rope` is everybody's.
        sandwich: what attention and feed-forward give is RMS-normalised before it is added.
        activation: of the gate, "silu" or "gelu_tanh".
        query_scalar: scores are divided by its square root; None = `head_dim`.
        embedding_scale: what embeddings are multiplied by on their way in, never in a tied head.
        rolling: in a dense layout, layers that have a window keep no more than that; their rows then share one length.
    """

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_eps: float
    rope: RopeConfig
    windows: tuple[int, ...]
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    local_rope: RopeConfig | None = None
    sandwich: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    query_scalar: float | None = None
    embedding_scale: float = 1.0
    rolling: bool = False

    @property
    def qkv_width(self) -> int:
        """Columns of the fused q, k, v projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that the model needs, under the Hugging Face names, which are ours."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        layer |= {"self_attn.q_proj.bias": (queries,), "self_attn.k_proj.bias": (keys,), "self_attn.v_proj.bias": (keys,)}
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    if config.sandwich:
        layer |= {"pre_feedforward_layernorm.weight": (hidden,), "post_feedforward_layernorm.weight": (hidden,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes
