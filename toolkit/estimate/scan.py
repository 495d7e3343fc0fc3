"""Equations F20 and T23: the scan of a state-space mixer, per token, in the average layer.

Mamba-2 (arXiv 2405.21060) and the gated delta rule (arXiv 2412.06464) cut a sequence into chunks: inside a chunk they
are matrix products like attention's, between chunks a state of ``inner * N`` values is handed on. Left out: Mamba-1,
whose scan is element-wise (its traffic alone is counted), the triangular inverse of the delta rule.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.equation import equation
from toolkit.model import ModelSpec

CHUNK = 128.0  # tokens: chunk_size of megatron-core 0.16.1 ssm/mamba_mixer.py
STATE_BYTES = 4.0  # states between chunks are float32 (mamba_ssm 2.2, ops/triton/ssd_chunk_state.py)


class Scan(NamedTuple):
    """Per token of the average layer, forward, whole model: FLOP of chunked products, bytes of the other kernels."""

    flop: float
    moved: float


@equation("F20", "2*(G*c*N + c*i + 2*i*N)")
def scan_flop(groups: float, chunk: float, state: float, inner: float) -> float:
    """FLOP of one token in a chunked scan: scores of a chunk, their products with values, states out and in.

    The masked half of a chunk is executed.

    Source: arXiv 2405.21060, section 6 and listing 1.
    """
    return 2.0 * (groups * chunk * state + chunk * inner + 2.0 * inner * state)


@equation("T23", "b*(2*w + (w + i) + 3*i) + 4*state_bytes*i*N/c")
def scan_bytes(bytes_each: float, mixed: float, inner: float, state: float, chunk: float, state_bytes: float) -> float:
    """Bytes of one token: convolution over ``w = i + 2GN`` values in and out, scan, gated norm, states of chunks.

    States are written, read and written by the pass from chunk to chunk, and read by the scan.

    Source: operands of the kernels of mamba_ssm 2.2 (causal_conv1d, ssd_combined, layernorm_gated).
    """
    around = bytes_each * (2.0 * mixed + (mixed + inner) + 3.0 * inner)
    return around + 4.0 * state_bytes * inner * state / chunk


def scan(model: ModelSpec, bytes_each: float) -> Scan:
    """Scans of all state-space and delta-rule mixers, averaged over the layers; nothing for other models."""
    mixers, flop, moved = model.layer_mixers, 0.0, 0.0
    mamba = float(mixers.count("M") + mixers.count("B"))
    if mamba:
        inner, state, groups = float(model.mamba_intermediate_size), float(model.state_size), float(model.mamba_groups)
        chunked = model.mamba_num_heads > 0
        flop += mamba * scan_flop(groups, CHUNK, state, inner) if chunked else 0.0
        mixed = inner + 2.0 * groups * state if chunked else inner
        moved += mamba * scan_bytes(bytes_each, mixed, inner, state if chunked else 0.0, CHUNK, STATE_BYTES)
    delta = float(mixers.count("L"))
    if delta and model.linear_num_value_heads:
        inner = float(model.linear_num_value_heads * model.linear_value_head_dim)
        keys, state = float(model.linear_num_key_heads), float(model.linear_key_head_dim)
        flop += delta * scan_flop(keys, CHUNK, state, inner)
        moved += delta * scan_bytes(bytes_each, inner + 2.0 * keys * state, inner, state, CHUNK, STATE_BYTES)
    layers = float(model.num_hidden_layers)
    return Scan(flop / layers, moved / layers)
