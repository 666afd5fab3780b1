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
        rotary_dim: leading elements of a head that rotate; 0 = all. The others are paired up too, and turn by nothing.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    divisors: tuple[float, ...] = ()
    rotary_dim: int = 0


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A mixture of experts in place of the feed-forward part (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).

    Attributes:
        first_layer: layers before it have a plain feed-forward part.
        num_experts, num_chosen: how many there are, and how many a token goes through.
        intermediate_size: of each expert. shared_size: of the part that every token goes through.
        num_groups, num_chosen_groups: experts lie in groups; a token chooses within those with the best two.
        normalise: the chosen ones' weights add up to 1 before they are multiplied by `scale`.
    """

    first_layer: int
    num_experts: int
    num_chosen: int
    intermediate_size: int
    shared_size: int
    num_groups: int = 1
    num_chosen_groups: int = 1
    normalise: bool = True
    scale: float = 1.0


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
        moe: the mixture of experts; None = every layer has a plain feed-forward part.
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
    moe: MoeConfig | None = None

    @property
    def qkv_width(self) -> int:
        """Columns of the fused q, k, v projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that the model needs, under the Hugging Face names, which are ours."""
    hidden, dim = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
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
        whole = layer | _feed_forward(config, index)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in whole.items()}
    return shapes


def _feed_forward(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    hidden, moe = config.hidden_size, config.moe
    if moe is None or index < moe.first_layer:
        return _gated("mlp", hidden, config.intermediate_size)
    shapes: dict[str, tuple[int, ...]] = {
        "mlp.gate.weight": (moe.num_experts, hidden),
        "mlp.gate.e_score_correction_bias": (moe.num_experts,),
    }
    shapes |= _gated("mlp.shared_experts", hidden, moe.shared_size)
    for expert in range(moe.num_experts):
        shapes |= _gated(f"mlp.experts.{expert}", hidden, moe.intermediate_size)
    return shapes


def _gated(name: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj.weight": (inner, hidden),
        f"{name}.up_proj.weight": (inner, hidden),
        f"{name}.down_proj.weight": (hidden, inner),
    }
