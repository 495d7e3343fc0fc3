"""Equations T4, T14 and T15: seconds of one average layer and of the head, for one micro batch on one GPU.

Matrix products (``layer_products``) and attention run at their reached rates, element-wise operations at memory
bandwidth. Megatron's kernels are fused, eager PyTorch moves more bytes (``layer_elementwise``); in small models the
host that issues the kernels is the slower one (``host_layer_seconds_*``).
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.calibration import Calibration
from toolkit.equation import equation
from toolkit.estimate.layer_bytes import FUSED_LOSS
from toolkit.estimate.layer_elementwise import adapter_traffic, elementwise, elementwise_bytes
from toolkit.estimate.layer_products import product_seconds
from toolkit.estimate.matmul import Rates
from toolkit.estimate.precision import value_bytes
from toolkit.estimate.preference import REFERENCE_PASSES, TILE_PASSES, is_preference
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
    products: Number  # matrix products, forward
    gradient: Number  # matrix products that make the gradient of weights, a part of the backward pass
    idle: Number  # of forward and backward, in which the device waits for the host: communication runs beside it
    device: Number  # of the forward pass, what the device works
    host: Number  # of the forward pass, what the host takes to issue it


@equation("T4", "max(device, host); launches that block: device + host")
def launch_bound(device: Number, host: Number, blocking: bool = False) -> Number:
    """A pass cannot be faster than the host issues its kernels; one that waits for every kernel adds its own time.

    Source: a stream runs dry when the host is slower; vTrain's single-node runs (arXiv 2312.12391) show the floor.
    """
    return device + host if blocking else maximum(device, host)


def layer_seconds(work: LayerWork, rate: Rates, workload: Workload, s: Strategy, c: Calibration) -> LayerSeconds:
    """Seconds of the average layer and of the head for one micro batch on one GPU."""
    each = value_bytes(workload)
    fused = s.framework == "megatron"
    tokens = 1.0 * s.micro_batch_size * workload.sequence_length / s.cp
    memory = rate.memory * c["memory_fraction"]
    shared = where(s.sequence_parallel, s.tp, 1)
    linear, linear_backward, gradient, weights = product_seconds(work, rate, workload, s, c, tokens)

    moved = elementwise(work, workload, s.framework)
    element_forward = elementwise_bytes(tokens, moved.whole_forward, moved.sharded_forward, shared, s.tp) / memory
    element_backward = elementwise_bytes(tokens, moved.whole_backward, moved.sharded_backward, shared, s.tp) / memory

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
    scanned, scanned_backward = _scan_seconds(work, rate, s, c, tokens, memory)
    forward = linear + element_forward + core + scanned
    backward = linear_backward + element_backward + core_backward + scanned_backward
    if workload.method != "full":
        inputs, outputs = (
            work.sharded_inputs / s.tp + work.whole_inputs,
            work.sharded_outputs / s.tp + work.whole_outputs,
        )
        adapted = adapter_traffic(workload, s.framework)
        forward = forward + tokens * (adapted.inputs_forward * inputs + adapted.outputs_forward * outputs) / memory
        backward = backward + tokens * (adapted.inputs_backward * inputs + adapted.outputs_backward * outputs) / memory
    if workload.method == "qlora":
        unpack = weights * c["dequantization_bytes"] / memory
        forward, backward = forward + unpack, backward + unpack
    host = _host_seconds(work, workload, s, c, fused)
    bound = [launch_bound(device, host, workload.launch_blocking) for device in (forward, backward)]
    return LayerSeconds(
        forward=bound[0],
        backward=bound[1],
        core=core,
        head=_head_seconds(work, rate, workload, s, tokens, memory),
        attention=core + core_backward,
        products=linear,
        gradient=gradient,
        idle=0.0 if workload.launch_blocking else bound[0] - forward + bound[1] - backward,
        device=forward,
        host=host,
    )


def _host_seconds(work: LayerWork, workload: Workload, s: Strategy, c: Calibration, fused: bool) -> Number:
    """Seconds of the host to issue one pass over a layer; CUDA graphs issue what they hold at once."""
    layer: Number = c["host_layer_seconds_megatron"] if fused else c["host_layer_seconds_torch"]
    if s.framework == "deepspeed":
        layer = layer + where(s.zero_stage == 3, c["host_layer_seconds_zero3"], 0.0)
    one_by_one = work.experts / (1.0 * s.ep) * c["host_expert_seconds"]
    experts = work.expert_fraction * (c["host_expert_layer_seconds"] + one_by_one)
    if workload.cuda_graphs == "none":
        return layer + experts
    return experts if workload.cuda_graphs == "attention" else 0.0


def _scan_seconds(
    work: LayerWork, rate: Rates, s: Strategy, c: Calibration, tokens: Number, memory: float
) -> tuple[Number, Number]:
    """Scan of state-space mixers, forward and backward: cut by heads over tp.

    The backward pass costs 2.5 times the forward one, which runs once more: the fused kernel keeps its input alone
    (mamba_ssm 2.2, ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn).
    """
    products = tokens * work.scan_flop / s.tp / (rate.peak_wide * c["scan_fraction"])
    traffic = tokens * work.scan_bytes / s.tp / memory
    return products + traffic, 3.5 * (products + traffic)


@equation("T15", "6*tokens*W/tp/rate + logits/bandwidth")
def head_seconds(
    tokens: Number, weights: float, tp: Number, rate: float, logits_bytes: Number, memory: float
) -> Number:
    """Head and loss, forward and backward: three products and the passes over the fp32 logits.

    Source: F1 and the passes of a float32 cross entropy.
    """
    return 6.0 * tokens * weights / tp / rate + logits_bytes / memory


def reference_head_seconds(work: LayerWork, rate: Rates, workload: Workload, s: Strategy, c: Calibration) -> Number:
    """The reference's head for one micro batch: one product, and its tiles written and read."""
    tokens, memory = 1.0 * s.micro_batch_size * workload.sequence_length / s.cp, rate.memory * c["memory_fraction"]
    tiles = tokens * work.vocabulary / s.tp * value_bytes(workload) * REFERENCE_PASSES
    return head_seconds(tokens, work.head_weights / 3.0, s.tp, rate.head, tiles, memory)


def _head_seconds(
    work: LayerWork, rate: Rates, workload: Workload, s: Strategy, tokens: Number, memory: float
) -> Number:
    if is_preference(workload):
        # forward, forward again tile by tile, and the gradients of the hidden state and, if trained, of the head
        products = 4.0 / 3.0 if workload.method == "full" else 1.0
        tiles = tokens * work.vocabulary / s.tp * value_bytes(workload) * TILE_PASSES
        return head_seconds(tokens, work.head_weights * products, s.tp, rate.head, tiles, memory)
    # over fp32 logits, eager: cast, maximum, exponent, sum, gradient; counted from the operations: assumed
    fused = workload.fused_cross_entropy or workload.kernels in FUSED_LOSS
    passes = 2.0 if fused else 7.0
    if s.framework == "megatron":
        # its vocabulary-parallel loss, operator by operator: cast (1.5 passes), maximum (1), difference (2), exponent
        # (2), sum (1), quotient (2); backward a product (2) and the cast back (1.5). Fused by the compiler: about half
        # (megatron-core 0.16.1 tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py)
        passes = 7.0 if fused else 13.0
    # each loss for the logs alone: cast to float32 (1.5 passes), logarithm of the softmax (2)
    passes = passes + 3.5 * workload.logged_losses
    logits = tokens * work.vocabulary / s.tp * 4.0 * passes
    trained = 1.0 if workload.method == "full" else 2.0 / 3.0
    return head_seconds(tokens, work.head_weights * trained, s.tp, rate.head, logits, memory)
