"""Equations T4 and T12 to T15: seconds of one average layer and of the head, for one micro batch on one GPU.

Matrix products and attention run at their reached rates, element-wise operations at memory bandwidth. Megatron's
kernels are fused, eager PyTorch moves more bytes (calibration ``unfused_traffic``); in small models the host that
issues the kernels is the slower one (``host_layer_seconds_*``). Left out: wave quantisation, the scan of
state-space mixers.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.calibration import Calibration
from toolkit.equation import equation
from toolkit.estimate.matmul import Rates, matmul_seconds, memory_seconds
from toolkit.estimate.precision import state_precision, value_bytes
from toolkit.estimate.work import LayerWork
from toolkit.numeric import Number, maximum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


class LayerSeconds(NamedTuple):
    """Seconds of one average layer for one micro batch, and of the head with the loss."""

    forward: Number
    backward: Number
    core: Number  # the attention core alone, forward
    head: Number  # forward and backward
    attention: Number  # attention kernels, forward and backward: what ring attention hides behind


@equation("T4", "max(device, host)")
def launch_bound(device: Number, host: float) -> Number:
    """A pass cannot be faster than the host issues its kernels.

    Source: a stream runs dry when the host is slower; vTrain's single-node runs (arXiv 2312.12391) show the floor.
    """
    return maximum(device, host)


@equation("T12", "2*tokens*(sharded/tp + whole + k*expert*padding/tp)")
def layer_matmul_flop(
    tokens: Number, tp: Number, sharded: float, whole: float, active_experts: float, padding: Number
) -> Number:
    """FLOP of the matrix products of one layer on one GPU, forward; experts with their padding (T18).

    Source: F1 over the matrices of the layer.
    """
    return 2.0 * tokens * (sharded / tp + whole + active_experts * padding / tp)


@equation("T18", "imbalance*(1 + tile/(2*rows))")
def expert_padding(rows: Number, tile: float, imbalance: Number) -> Number:
    """Work of grouped products over that of the mean: the fullest rank, and on average half a tile of empty rows.

    ``rows = tokens k etp ep / (E tp)`` are those of one expert.

    Source: 108 grouped products on B200 (SimuMax), where 154 rows take 1.4 times as long as 128.
    """
    return imbalance * (1.0 + tile / (2.0 * rows))


@equation("T13", "bytes*(tokens*(sharded/tp + whole) + weights)")
def layer_matmul_bytes(
    bytes_each: float, tokens: Number, tp: Number, sharded: float, whole: float, weights: Number
) -> Number:
    """Bytes of operands and results of those products: activations in and out, weights once.

    Source: the shapes of the matrices of the layer.
    """
    return bytes_each * (tokens * (sharded / tp + whole) + weights)


@equation("T14", "tokens*(whole/shared + sharded/tp)")
def elementwise_bytes(tokens: Number, whole: float, sharded: float, shared: Number, tp: Number) -> Number:
    """Bytes of norms, residuals (divided only under sequence parallelism), activations, rotary positions.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2, for what sequence parallelism divides.
    """
    return tokens * (whole / shared + sharded / tp)


def layer_seconds(work: LayerWork, rate: Rates, workload: Workload, s: Strategy, c: Calibration) -> LayerSeconds:
    """Seconds of the average layer and of the head for one micro batch on one GPU."""
    each = value_bytes(workload)
    fused = s.framework == "megatron"
    tokens = 1.0 * s.micro_batch_size * workload.sequence_length / s.cp
    memory = rate.memory * c["memory_fraction"]
    shared = where(s.sequence_parallel, s.tp, 1)
    padding: Number = 1.0
    if work.expert_weights:
        rows = tokens * work.experts_per_token * s.etp * s.ep / (work.experts * s.tp)
        padding = expert_padding(rows, c["expert_tile_rows"], where(s.ep > 1, c["expert_imbalance"], 1.0))

    active = work.experts_per_token * work.expert_weights
    flop = layer_matmul_flop(tokens, s.tp, work.sharded_weights, work.whole_weights, active, padding)
    weights = (
        work.sharded_weights / s.tp + work.whole_weights + work.experts * work.expert_weights / (1.0 * s.ep * s.etp)
    )
    moved = layer_matmul_bytes(
        each,
        tokens,
        s.tp,
        work.sharded_width + work.experts_per_token * (work.expert_sharded_width + work.expert_whole_width),
        work.whole_width,
        weights,
    )
    linear = matmul_seconds(flop, rate.matmul, moved, rate.memory, work.kernels, rate.launch)
    # the gradient of the weights is written (accumulated: read, added, written) in its own type
    state = state_precision(workload, s.framework)
    accumulated = memory_seconds(weights * 2.0 * state.gradients, rate.memory, 1.0)
    if s.framework == "ddp" and state.parameters > each:
        # autocast reads float32 weights and writes the working copy in every forward pass
        accumulated = accumulated + memory_seconds(weights * (state.parameters + each), rate.memory, 1.0)

    whole_forward, sharded_forward, whole_backward, sharded_backward = _elementwise(work, workload, each)
    factor = 1.0 if fused else c["unfused_traffic"]
    element_forward = factor * elementwise_bytes(tokens, whole_forward, sharded_forward, shared, s.tp) / memory
    element_backward = factor * elementwise_bytes(tokens, whole_backward, sharded_backward, shared, s.tp) / memory

    core_flop = tokens * work.attention_flop / s.tp
    core = core_flop / rate.attention_forward
    # five products instead of two: the scores are computed again (arXiv 2205.14135, section 3.1)
    core_backward = 2.5 * core_flop / rate.attention_backward
    if workload.attention != "flash":
        # scores are written and read by scale-and-mask, softmax, dropout and the second product; the number of
        # passes (5 and 8) is counted from those kernels' operands, not measured: assumed
        scores = tokens * work.score_elements / s.tp * each
        core = core_flop / rate.matmul + scores * 5.0 / memory
        core_backward = 2.0 * core_flop / rate.matmul + scores * 8.0 / memory
    forward = linear + element_forward + core
    if workload.method == "full":
        backward = 2.0 * linear + accumulated + element_backward + core_backward
    else:
        # only the gradient of activations passes through the frozen base; adapters read and write the same widths
        adapters = each * tokens * (work.sharded_width / s.tp + work.whole_width) / memory
        forward = forward + adapters
        backward = linear + 2.0 * adapters + element_backward + core_backward
    if workload.method == "qlora":
        unpack = weights * c["dequantization_bytes"] / memory
        forward, backward = forward + unpack, backward + unpack
    host = c["host_layer_seconds_megatron"] if fused else c["host_layer_seconds_torch"]
    host = host + work.expert_fraction * c["host_expert_layer_seconds"]
    return LayerSeconds(
        forward=launch_bound(forward, host),
        backward=launch_bound(backward, host),
        core=core,
        head=_head_seconds(work, rate, workload, s, tokens, memory),
        attention=core + core_backward,
    )


def _elementwise(work: LayerWork, workload: Workload, each: float) -> tuple[float, float, float, float]:
    """Bytes per token of one layer: whole and sharded, forward and backward (reads and writes of fused kernels).

    The factors count operands: each of two residuals reads two tensors and writes one, a norm reads and writes one
    (five in its backward), tokens move to experts and back by a read and a write each. Not measured: assumed; the
    calibration ``memory_fraction`` takes up what they miss.
    """
    dropout = 2.5 * work.hidden * each * 2.0 if workload.dropout else 0.0
    residual = 2.0 * 3.0 * work.hidden * each
    norm = work.norms * work.hidden * each
    gate = 1.0 + work.gated
    act = work.dense_activation_width * each + work.experts_per_token * work.expert_activation_width * each
    rotary = 2.0 * work.rotary_width * each
    permute = work.expert_fraction * work.experts_per_token * work.hidden * each * 4.0
    return (
        residual + 2.0 * norm + dropout,
        (gate + 1.0) * act + rotary + permute,
        residual + 5.0 * norm + dropout,
        (2.0 * gate + 1.0) * act + rotary + permute,
    )


@equation("T15", "6*tokens*W/tp/rate + logits/bandwidth")
def head_seconds(
    tokens: Number, weights: float, tp: Number, rate: float, logits_bytes: Number, memory: float
) -> Number:
    """Head and loss, forward and backward: three products and the passes over the fp32 logits.

    Source: F1 and the passes of a float32 cross entropy.
    """
    return 6.0 * tokens * weights / tp / rate + logits_bytes / memory


def _head_seconds(
    work: LayerWork, rate: Rates, workload: Workload, s: Strategy, tokens: Number, memory: float
) -> Number:
    # over fp32 logits, eager: cast, maximum, exponent, sum, gradient; counted from the operations: assumed
    passes = 2.0 if workload.fused_cross_entropy else 7.0
    logits = tokens * work.vocabulary / s.tp * 4.0 * passes
    trained = 1.0 if workload.method == "full" else 2.0 / 3.0
    return head_seconds(tokens, work.head_weights * trained, s.tp, rate.head, logits, memory)
