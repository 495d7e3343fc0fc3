"""Equations A1..A9: bytes that one layer keeps per token for its backward pass.

Symbols: ``h`` hidden size, ``f`` MLP width, ``H`` query heads, ``K`` key and value heads, ``d`` head size,
``s`` sequence length, ``b`` bytes of a value in the compute precision, ``m`` 1 with dropout, else 0.
*Replicated* bytes lie on every tensor-parallel rank unless sequence parallelism divides them; *sharded*
bytes are divided by the tensor-parallel degree; *routed* bytes are the inputs of routed experts.

With ``b = 2``, dropout, GELU, ``K = H`` and no flash attention these are the terms of Korthikanti et al. 2022
(arXiv 2205.05198, section 4): ``10 h`` replicated, ``24 h`` sharded, ``5 H s`` scores. What the fused kernels
of Megatron and the eager modules of Hugging Face keep on top differs in coefficients, which come in as
arguments (``kept_megatron``, ``kept_eager``). Checked against a dry run of megatron-core 0.16.1 and against
autograd's saved tensors in transformers 5.24 (tests/estimate). Left out: rotary tables, masks, statistics of
norms (all small), and everything that torch.compile would save.
"""

from __future__ import annotations

from toolkit.equation import equation


@equation("A1", "n*h*k_norm")
def norm_bytes(norms: int, hidden_size: int, bytes_per_value: float) -> float:
    """Inputs of ``n`` norms; ``k_norm`` bytes a value (fused: b; eager RMSNorm: a float32 copy and the product).

    Source: arXiv 2205.05198 section 4.1 (4 s b h for two); transformers 5.24 ``LlamaRMSNorm``.
    """
    return float(norms) * hidden_size * bytes_per_value


@equation("A2", "c*b*h + m*h")
def input_bytes(copies: float, bytes_per_value: float, hidden_size: int, dropout: int) -> float:
    """Input of the matrices that open an attention or MLP block, ``c`` copies, and the dropout mask at its end.

    Source: arXiv 2205.05198 section 4.1: 2 s b h for each input, s b h for each mask.
    """
    return copies * bytes_per_value * hidden_size + dropout * float(hidden_size)


@equation("A3", "b*d*(2*H + 2*K)")
def attention_bytes(bytes_per_value: float, head_dim: int, heads: int, key_value_heads: int) -> float:
    """Queries, keys, values, and the context that feeds the output matrix.

    Source: arXiv 2205.05198 section 4.1 (8 s b h); grouped queries, arXiv 2305.13245, have ``K`` keys.
    """
    return bytes_per_value * head_dim * (2.0 * heads + 2.0 * key_value_heads)


@equation("A4", "(k_score + m*(1 + b))*H*s")
def score_bytes(
    bytes_per_score: float, dropout: int, bytes_per_value: float, heads: int, sequence_length: int
) -> float:
    """Softmax output, with its dropout mask and result, where attention is not fused (5 H s).

    Source: arXiv 2205.05198 section 4.1; eager attention of transformers 5.24 softmaxes in float32.
    """
    return (bytes_per_score + dropout * (1.0 + bytes_per_value)) * heads * sequence_length


@equation("A5", "k_mlp*f")
def mlp_bytes(bytes_per_width: float, width: int) -> float:
    """Inside of an MLP of width ``f``: pre-activation, activation, gate and product.

    ``k_mlp`` is 2 b for GELU (8 h + 8 h at f = 4 h), 3 b for a fused SwiGLU, 4 b for an eager one.
    Source: arXiv 2205.05198 section 4.1; megatron-core 0.16.1 ``core/fusions/fused_bias_swiglu.py``.
    """
    return bytes_per_width * width


@equation("A6", "dispatched t*c*b*h, inside t*(k_mlp*f_e + 4)")
def routed_bytes(
    experts_per_token: int, copies: float, bytes_per_value: float, hidden_size: int, bytes_per_width: float, width: int
) -> tuple[float, float]:
    """Each token visits ``t`` experts of width ``f_e``: inputs (and outputs) that are dispatched, and the inside.

    Balanced routing: a rank receives as many tokens as it sends. Returns (dispatched, inside).
    Source: megatron-core 0.16.1 ``core/transformer/moe/experts.py`` (routing weights inside the activation).
    """
    dispatched = experts_per_token * (copies * bytes_per_value * hidden_size)
    return dispatched, experts_per_token * (bytes_per_width * width + 4.0)


@equation("A7", "sharded b*(2*H*(d_n + d_r) + 2*H*d_v), replicated b*(r_q + r_kv + d_r) + k_norm*(r_q + r_kv)")
def latent_attention_bytes(
    bytes_per_value: float,
    bytes_per_norm: float,
    heads: int,
    query_rank: int,
    key_value_rank: int,
    nope_dim: int,
    rope_dim: int,
    value_dim: int,
) -> tuple[float, float]:
    """Multi-head latent attention: whole heads after the up-projections, latents before them.

    Source: DeepSeek-V2, arXiv 2405.04434, equations 9 to 15; what transformers 5.24 keeps of them.
    """
    sharded = bytes_per_value * (2.0 * heads * (nope_dim + rope_dim) + 2.0 * heads * value_dim)
    latents = float(query_rank + key_value_rank)
    return latents * (bytes_per_value + bytes_per_norm) + bytes_per_value * rope_dim, sharded


@equation("A8", "b*(6*i + 4*G*N + n) + 4*i*N/256")
def state_space_bytes(bytes_per_value: float, inner: int, groups: int, state: int, heads: int) -> float:
    """A Mamba or Mamba-2 mixer with its fused kernels: projection, convolution, scan, gate. Approximate.

    One float32 state is kept for each chunk of 256 tokens. The kernels were not measured here.
    Source: arXiv 2405.21060 section 7, mamba-ssm ``ssd_combined.py``; assumed.
    """
    selected = 2.0 * groups * state
    projected = bytes_per_value * (2.0 * inner + selected + heads)
    return projected + bytes_per_value * (inner + selected) + bytes_per_value * 3.0 * inner + 4.0 * inner * state / 256


@equation("A9", "b*(4*q + 5*v)")
def delta_rule_bytes(bytes_per_value: float, keys: int, values: int) -> float:
    """Gated delta rule: queries, keys and values before and after the convolution; gate, result, norm. Approximate.

    Source: arXiv 2412.06464; the kernels were not measured here: assumed.
    """
    return bytes_per_value * 2.0 * (2.0 * keys + values) + bytes_per_value * 3.0 * values
