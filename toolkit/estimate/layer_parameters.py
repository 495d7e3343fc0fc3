"""Equations P1..P16: parameters of each part of a transformer, one leaf formula per part.

Symbols (all counts, widths in elements): ``h`` hidden size, ``f`` MLP width, ``H`` query heads, ``K``
key and value heads, ``d`` head size, ``V`` vocabulary, ``E`` experts, ``m`` expert width. A flag is 1
or 0. Every matrix of inputs x outputs counts ``inputs * outputs``, and a bias counts ``outputs``.

*Sharded* parts are what tensor parallelism divides; *replicated* parts every rank holds whole (norms,
routers, biases of row-parallel matrices, the down-projections of latent attention): Megatron-LM,
arXiv 1909.08053 section 3, and megatron-core 0.16 for the rest. Buffers (rotary frequencies, the score
correction of a router) are not parameters and are left out.
"""

from __future__ import annotations

from toolkit.equation import equation


@equation("P1", "V*e")
def embedding(vocab_size: int, embedding_size: int) -> int:
    """Token table, or the head when it is not tied: ``V * e``. Source: arXiv 1706.03762, section 3.4."""
    return vocab_size * embedding_size


@equation("P2", "h*(H + 2*K)*d + H*d*h + gate*h*H*d + bias*(H + 2*K + gate*H)*d + sinks*H")
def attention_sharded(
    hidden_size: int, heads: int, key_value_heads: int, head_dim: int, bias: bool, gate: bool, sinks: bool
) -> int:
    """Query, key, value and output matrices, biases of the first three, optional gate and sinks.

    Keys and values have ``K`` heads; ``d`` need not be ``h / H``. Source: arXiv 2305.13245 (grouped queries);
    transformers 5.24 modeling_llama.py, modeling_qwen3_next.py (gate), modeling_gpt_oss.py (sinks).
    """
    columns = (heads + 2 * key_value_heads + gate * heads) * head_dim
    return hidden_size * columns + heads * head_dim * hidden_size + bias * columns + sinks * heads


@equation("P3", "output_bias*h + (1 + norm_bias)*(n_q + n_k)")
def attention_replicated(hidden_size: int, output_bias: bool, query_norm: int, key_norm: int, norm_bias: bool) -> int:
    """Output bias and the norms on queries (``n_q`` wide) and keys (``n_k`` wide). Source: arXiv 2302.05442."""
    return output_bias * hidden_size + (1 + norm_bias) * (query_norm + key_norm)


@equation("P4", "(r_q or h)*H*(d_n + d_r) + r_kv*H*(d_n + d_v) + H*d_v*h")
def latent_attention_sharded(
    hidden_size: int, heads: int, query_rank: int, key_value_rank: int, nope_dim: int, rope_dim: int, value_dim: int
) -> int:
    """Up-projections and output of multi-head latent attention. Source: arXiv 2405.04434, equations 9 to 15.

    ``r_q`` is the rank of the queries (0: projected straight from ``h``), ``r_kv`` that of keys and values,
    ``d_n`` and ``d_r`` head sizes without and with rotary positions, ``d_v`` the value head size.
    """
    queries = (query_rank or hidden_size) * heads * (nope_dim + rope_dim)
    return queries + key_value_rank * heads * (nope_dim + value_dim) + heads * value_dim * hidden_size


@equation("P5", "h*r_q + r_q + h*(r_kv + d_r) + r_kv + bias*(r_q + r_kv + d_r + h)")
def latent_attention_replicated(
    hidden_size: int, query_rank: int, key_value_rank: int, rope_dim: int, bias: bool
) -> int:
    """Down-projections of latent attention with their norms; with ``bias`` on them and on the output.

    Source: arXiv 2405.04434, equations 9 to 15; transformers 5.24 modeling_deepseek_v3.py for norms and biases.
    """
    queries = hidden_size * query_rank + query_rank
    keys_values = hidden_size * (key_value_rank + rope_dim) + key_value_rank
    return queries + keys_values + bias * (query_rank + key_value_rank + rope_dim + hidden_size)


@equation("P6", "(2 + gated)*h*f + bias*(1 + gated)*f")
def mlp_sharded(hidden_size: int, width: int, gated: bool, bias: bool) -> int:
    """Up (and gate) and down matrices of an MLP, with the biases of up and gate. Source: arXiv 2002.05202."""
    return (2 + gated) * hidden_size * width + bias * (1 + gated) * width


@equation("P7", "bias*h")
def mlp_replicated(hidden_size: int, bias: bool) -> int:
    """Bias of the down matrix. Source: arXiv 1706.03762, equation 2."""
    return bias * hidden_size


@equation("P8", "E*((2 + gated)*h*m + bias*((1 + gated)*m + h))")
def experts(number: int, hidden_size: int, width: int, gated: bool, bias: bool) -> int:
    """``E`` experts of width ``m``; only the chosen ones count as active. Source: arXiv 2401.04088, section 2.1."""
    return number * ((2 + gated) * hidden_size * width + bias * ((1 + gated) * width + hidden_size))


@equation("P9", "h*E + bias*E + shared_gate*h")
def router(hidden_size: int, number: int, bias: bool, shared_gate: bool) -> int:
    """Router, and the gate of the shared experts where there is one. Source: arXiv 2401.04088; arXiv 2407.10671."""
    return hidden_size * number + bias * number + shared_gate * hidden_size


@equation("P10", "3*h*i + i*(k + conv_bias) + i*(R + 2*N) + R*i + i + i*N + i + proj_bias*(2*i + h)")
def mamba_sharded(
    hidden_size: int, inner: int, state: int, kernel: int, rank: int, conv_bias: bool, proj_bias: bool
) -> int:
    """Mamba mixer: in, convolution, x, time step, A, D, out. Source: arXiv 2312.00752, section 3.4.

    ``i`` inner width, ``N`` state size, ``k`` convolution kernel, ``R`` rank of the time step.
    """
    convolution = inner * kernel + conv_bias * inner
    selection = inner * (rank + 2 * state) + rank * inner + inner
    scan = inner * state + inner
    projections = hidden_size * 2 * inner + inner * hidden_size + proj_bias * (2 * inner + hidden_size)
    return projections + convolution + selection + scan


@equation(
    "P11", "h*(2*i + 2*G*N + n) + (i + 2*G*N)*(k + conv_bias) + 3*n + norm*i + i*h + proj_bias*(2*i + 2*G*N + n + h)"
)
def mamba2_sharded(
    hidden_size: int,
    inner: int,
    state: int,
    kernel: int,
    groups: int,
    heads: int,
    conv_bias: bool,
    proj_bias: bool,
    norm: bool,
) -> int:
    """Mamba-2 mixer: ``n`` heads with a time step, A and D each; ``G`` groups share B and C.

    Source: arXiv 2405.21060, section 8.
    """
    columns = 2 * inner + 2 * groups * state + heads
    convolution = (inner + 2 * groups * state) * (kernel + conv_bias)
    projections = hidden_size * columns + inner * hidden_size + proj_bias * (columns + hidden_size)
    return projections + convolution + 3 * heads + norm * inner


@equation("P12", "inner_norms*(R + 2*N)")
def mamba_replicated(state: int, rank: int, inner_norms: bool) -> int:
    """Norms on time step, B and C (Jamba). Source: arXiv 2403.19887, section 5."""
    return inner_norms * (rank + 2 * state)


@equation("P13", "h*(2*q + 2*v) + h*2*n_v + (2*q + v)*k + 2*n_v + d_v + v*h")
def delta_rule_sharded(
    hidden_size: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int
) -> int:
    """Gated delta rule as in Qwen3-Next: ``q = key heads * d_k``, ``v = n_v * d_v``. Source: arXiv 2412.06464.

    Query, key, value and gate; two scalars per value head; convolution; decay and time step; norm; output.
    """
    keys, values = key_heads * key_dim, value_heads * value_dim
    projections = hidden_size * (2 * keys + 2 * values) + hidden_size * 2 * value_heads + values * hidden_size
    return projections + (2 * keys + values) * kernel + 2 * value_heads + value_dim


@equation("P14", "4*h*h + h*(k + conv_bias) + conv_bias*4*h")
def short_convolution_sharded(hidden_size: int, kernel: int, conv_bias: bool) -> int:
    """Gated short convolution: in (three times ``h``), depthwise convolution, out.

    Source: transformers 5.24 modeling_lfm2.py.
    """
    return 4 * hidden_size * hidden_size + hidden_size * (kernel + conv_bias) + conv_bias * 4 * hidden_size


@equation("P15", "n*h*(1 + bias)")
def norms(number: int, hidden_size: int, bias: bool) -> int:
    """``n`` norms: a scale each, and a bias where it is LayerNorm. Source: arXiv 1607.06450; arXiv 1910.07467."""
    return number * hidden_size * (1 + bias)


@equation("P16", "total - (experts - chosen experts)")
def active(total: int, routed_experts: int, routed_experts_active: int) -> int:
    """Parameters that one token uses: all but the experts not chosen. Routers, shared experts, embeddings count.

    Source: arXiv 2401.04088, section 2.1 (active parameters).
    """
    return total - (routed_experts - routed_experts_active)
