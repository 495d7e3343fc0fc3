"""Equations T1..T3: seconds of matrix products and of fused attention on one accelerator.

The matrix-product curve has one parameter per architecture, the largest fraction of the peak ever reached; that
small products are slower follows from the bytes they move and from the cost of starting a kernel. Fits and
sources: data/efficiency/matmul.toml and attention.toml.
"""

from __future__ import annotations

import msgspec

from toolkit.cluster import Accelerator
from toolkit.equation import equation
from toolkit.numeric import Number
from toolkit.registry.efficiency import attention_curve, matmul_curve
from toolkit.workload import Workload

# where the peak of a precision is not stated, the next one is used
_FALLBACK = {"fp8": ("fp8", "bf16", "fp16", "fp32"), "fp16": ("fp16", "bf16", "fp32"), "bf16": ("bf16", "fp16", "fp32")}


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What one accelerator reaches: FLOP/s of matrix products and attention, bytes/s, seconds per kernel."""

    peak: float  # dense peak of the precision: the denominator of MFU
    peak_wide: float  # the same in 16 bits, where the precision is fp8
    matmul: float  # in the precision of the linear layers
    head: float  # in 16 bits: the head is not cast to fp8
    attention_forward: float
    attention_backward: float
    memory: float
    launch: float


def peak_flop_per_second(accelerator: Accelerator, precision: str) -> float:
    """Dense peak for a precision; without one, the peak of the next wider type that the accelerator states."""
    peaks = accelerator.peak_flop_per_second
    for name in _FALLBACK.get(precision, ("tf32", "fp32", "bf16")):
        if name in peaks:
            return float(peaks[name])
    return float(max(peaks.values()))


def achievable(accelerator: Accelerator, precision: str) -> float:
    """FLOP/s of the fastest matrix product ever measured on the accelerator, else by the curve of its architecture."""
    measured = accelerator.achievable_flop_per_second
    for name in _FALLBACK.get(precision, ("tf32", "fp32")):
        if name in measured and name in accelerator.peak_flop_per_second:
            fraction = measured[name] / accelerator.peak_flop_per_second[name]
            return fraction * peak_flop_per_second(accelerator, precision)
    return matmul_curve(accelerator).max_fraction * peak_flop_per_second(accelerator, precision)


@equation("T1", "F/(peak*e) + bytes/bandwidth + kernels*launch")
def matmul_seconds(
    flop: Number, rate: float, moved: Number, bandwidth: float, kernels: Number, launch: float
) -> Number:
    """Seconds of matrix products: ``rate = peak * e``; operands and result cross the memory bus once each.

    Source: additive roofline fitted on 16,843 published kernel times (data/efficiency/matmul.toml).
    """
    return flop / rate + moved / bandwidth + kernels * launch


@equation("T2", "peak*e*s/(s + s_half)*min(1, max(0.6, sqrt(d/128)))")
def attention_rate(peak: float, fraction: float, sequence: float, half_sequence: float, width: float) -> float:
    """FLOP/s of fused attention: longer sequences fill the device; narrow heads feed the tensor cores less.

    Source: 8,139 published FlashAttention-2 times and SimuMax on B200 (data/efficiency/attention.toml).
    """
    return peak * fraction * sequence / (sequence + half_sequence) * min(1.0, max(0.6, width))


@equation("T3", "bytes/(bandwidth*e)")
def memory_seconds(moved: Number, bandwidth: float, fraction: float) -> Number:
    """Seconds of an operation bound by memory: every byte crosses the bus once.

    Source: the roofline model, doi 10.1145/1498765.1498785.
    """
    return moved / (bandwidth * fraction)


def flash_generation(workload: Workload, framework: str) -> int:
    """Which fused attention runs: what the workload says, else Megatron's (3), else what PyTorch ships (2)."""
    brought = 3 if framework == "megatron" or workload.kernels == "megatron" else 2
    return workload.flash_generation or brought


def rates(accelerator: Accelerator, workload: Workload, head_dim: int, framework: str, sustained: float) -> Rates:
    """Reached rates of one accelerator; ``sustained`` is the rate of long runs over that of a short benchmark."""
    precision = workload.precision
    linear = matmul_curve(accelerator)
    generation = flash_generation(workload, framework)
    curve = attention_curve(accelerator, generation)
    fraction = curve.torch_fraction or curve.max_fraction if generation == 2 else curve.max_fraction
    sustained = sustained * linear.clock_fraction
    wide = "bf16" if precision == "fp8" else precision
    peak_wide = peak_flop_per_second(accelerator, wide)
    width = (head_dim / 128.0) ** 0.5 if curve.narrow_heads else 1.0
    attention = attention_rate(peak_wide, fraction, float(workload.sequence_length), curve.half_sequence, width)
    return Rates(
        peak=peak_flop_per_second(accelerator, precision),
        peak_wide=peak_wide,
        matmul=achievable(accelerator, precision) * sustained,
        head=achievable(accelerator, wide) * sustained,
        attention_forward=attention * sustained,
        attention_backward=attention * curve.backward_ratio * sustained,
        memory=float(accelerator.memory_bandwidth_bytes_per_second),
        launch=linear.launch_seconds,
    )
