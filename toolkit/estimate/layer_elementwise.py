"""Equation T14: bytes that the element-wise work of one average layer moves, per token.

Two counts of operands, each read and written once:

- *fused* kernels (Megatron's, compiled and hand-written ones): a residual reads two tensors and writes one, a norm
  reads and writes one (five in its backward), a gated activation reads two and writes one.
- *eager* PyTorch, operator by operator, as transformers 5.24 issues them (tests/estimate/test_layer_elementwise.py
  counts every operator of real layers): an RMSNorm is seven operators forward and sixteen backward, most in float32;
  rotary positions are five and six; the gradients of matrices that share an input are added one by one (or, where
  the matrices are joint, those of their results are put together). GELU is one kernel, and so is LayerNorm, which is
  counted as measured, not by its operands: it takes the time of 2.9 passes forward and of 4.1 (GH200) to 9.4 (A100)
  backward at the bandwidth that others reach (estimate-train-time, commit 1ac4d5e44116).

Left out: copies that make a tensor contiguous, gradients of biases, the routing of tokens in eager mixtures.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.equation import equation
from toolkit.estimate.layer_bytes import FUSED_LAYERS
from toolkit.estimate.precision import pure, stream_bytes, value_bytes
from toolkit.estimate.work import LayerWork
from toolkit.numeric import Number
from toolkit.workload import Workload

FLOAT32 = 4.0


class Moved(NamedTuple):
    """Bytes per token of one layer: the same on every rank of the tensor axis, and divided by it."""

    whole_forward: float
    sharded_forward: float
    whole_backward: float
    sharded_backward: float


@equation("T14", "tokens*(whole/shared + sharded/tp)")
def elementwise_bytes(tokens: Number, whole: float, sharded: float, shared: Number, tp: Number) -> Number:
    """Bytes of norms, residuals (divided only under sequence parallelism), activations, rotary positions.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2, for what sequence parallelism divides.
    """
    return tokens * (whole / shared + sharded / tp)


def elementwise(work: LayerWork, workload: Workload, framework: str) -> Moved:
    """What one layer moves per token, by the kernels of the framework or those that the workload names."""
    each = value_bytes(workload)
    fused = framework == "megatron" and workload.kernels != "unfused"
    if fused or workload.kernels in FUSED_LAYERS:
        return _fused(work, workload, each, framework == "megatron" or workload.kernels == "megatron")
    return _eager(work, workload, each, stream_bytes(workload, framework))


def _activated(work: LayerWork) -> float:
    """Width of all activations of a token: dense MLP or shared expert, and chosen experts."""
    return work.dense_activation_width + work.experts_per_token * work.expert_activation_width


def _permuted(work: LayerWork, each: float) -> float:
    """Tokens move to experts and back by a read and a write each."""
    return work.expert_fraction * work.experts_per_token * work.hidden * each * 4.0


def _biased(work: LayerWork) -> tuple[float, float]:
    """Biases of routed experts in megatron-core, forward and backward: eager kernels, one expert after the other.

    ``cat(t + b p)`` weights the bias of the second product with the routing weight in float32: a product written
    (4 bytes a value), a sum read and written (10), joined (8), cast (6); backward the cast (6), the gradients of ``t``
    (6), of the bias (12) and of the weight (12), and of the split (4).

    Source: megatron-core 0.16.1 moe/experts.py, TEGroupedMLP._apply_bias.
    """
    width = work.experts_per_token * work.expert_bias_width
    return (4.0 + 10.0 + 8.0 + 6.0) * width, (6.0 + 6.0 + 12.0 + 12.0 + 4.0) * width


def _clamped(work: LayerWork, each: float) -> tuple[float, float]:
    """Gate and up of experts that are clamped before the fused activation (gpt-oss), forward and backward.

    Two clamps and the tensor that joins them again, each read and written; backward each reads the input too.

    Source: megatron-core 0.16.1 fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl.
    """
    width = 2.0 * work.experts_per_token * work.expert_clamped_width * each
    return 4.0 * width, 5.0 * width


def _dropped(work: LayerWork, workload: Workload, kept: float) -> float:
    """Two dropouts of ``kept`` bytes a value."""
    return 2.0 * work.hidden * kept if workload.dropout else 0.0


def _fused(work: LayerWork, workload: Workload, each: float, megatron: bool) -> Moved:
    # beside bias and residual the mask of a byte alone is new
    residual = work.residuals * 3.0 * work.hidden * each + _dropped(work, workload, 1.0)
    norm = work.norms * work.hidden * each
    gate = 1.0 + work.gated
    active = _activated(work) * each
    rotary = 2.0 * work.rotary_width * each
    heads = work.head_norm_width * each
    permute = _permuted(work, each)
    biased, biased_backward = _biased(work) if megatron else (0.0, 0.0)
    clamped, clamped_backward = _clamped(work, each) if megatron else (0.0, 0.0)
    return Moved(
        residual + 2.0 * norm,
        (gate + 1.0) * active + rotary + 2.0 * heads + permute + biased + clamped,
        residual + 5.0 * norm,
        (2.0 * gate + 1.0) * active + rotary + 5.0 * heads + permute + biased_backward + clamped_backward,
    )


def _eager(work: LayerWork, workload: Workload, each: float, stream: float) -> Moved:
    # a kernel of its own reads, writes and keeps a mask of a byte
    residual = work.residuals * 3.0 * work.hidden * stream + _dropped(work, workload, 2.0 * each + 1.0)
    norm, norm_backward = (3.0 * stream, 7.0 * stream) if work.native_norm else _eager_rms_norm(stream)
    head, head_backward = _eager_rms_norm(each)
    # under autocast every matrix casts its input, and the gradient of that back
    cast = work.whole_inputs * (stream + each) if stream != each else 0.0
    # four matrices have an input each; the gradients of any more are added to those of their neighbours
    shared = max(work.kernels - 4.0, 0.0) * 3.0 * work.hidden * stream
    if work.gated:
        active, active_backward = 5.0 * each, 9.0 * each
    elif work.composed_activation:
        active, active_backward = 18.0 * each, 28.0 * each
    else:
        active, active_backward = 2.0 * each, 3.0 * each
    permute = _permuted(work, each)
    return Moved(
        residual + norm * work.norms * work.hidden + cast,
        active * _activated(work) + 10.0 * each * work.rotary_width + head * work.head_norm_width + permute,
        residual + norm_backward * work.norms * work.hidden + cast + shared,
        active_backward * _activated(work)
        + 14.0 * each * work.rotary_width
        + head_backward * work.head_norm_width
        + permute,
    )


def _eager_rms_norm(stream: float) -> tuple[float, float]:
    """Bytes per value, forward and backward: to float32, square, mean, product, back, weight; sixteen backward."""
    cast = 2.0 * (stream + FLOAT32) if stream < FLOAT32 else 0.0
    return 5.0 * FLOAT32 + 2.0 * stream + cast, 20.0 * FLOAT32 + cast


class Adapted(NamedTuple):
    """Bytes per value that enters or leaves a matrix with an adapter."""

    inputs_forward: float
    outputs_forward: float
    inputs_backward: float
    outputs_backward: float


def adapter_traffic(workload: Workload, framework: str) -> Adapted:
    """What low-rank adapters move beside the matrices that they adapt.

    Fused: A reads the input, the result of B is written and added. Eager, as peft 0.21.2 (``lora/layer.py``): the
    result is scaled and added, too; and where adapters are float32 (under DDP and FSDP; DeepSpeed casts them), the
    input is cast, and the same for its gradient. Under DDP autocast (accelerate 1.15, ``prepare_model``) casts that
    input back, so that A, B, scale and sum are of 16 bits; elsewhere they are float32 and the sum is cast back.
    """
    b = value_bytes(workload)
    if framework == "megatron" or workload.kernels in FUSED_LAYERS:
        return Adapted(b, 4.0 * b, 4.0 * b, 2.0 * b)
    wide = b if framework == "deepspeed" or pure(workload, framework) else FLOAT32
    cast = b + wide if wide != b else 0.0
    if framework == "ddp":
        return Adapted(2.0 * cast + b, 6.0 * b, 2.0 * cast + 5.0 * b, 4.0 * b)
    return Adapted(
        inputs_forward=cast + wide,
        outputs_forward=wide + 2.0 * wide + (b + 2.0 * wide) + cast,
        inputs_backward=2.0 * wide + cast + 3.0 * b,
        outputs_backward=cast + 2.0 * wide + 2.0 * wide,
    )
