"""Equations T4..T9 and T12..T16: seconds of one optimizer step, by part.

``step(model, cluster, workload, strategy, communication, calibration)`` adds what one GPU of the slowest pipeline
stage does: matrix products and attention at their reached rates, element-wise operations at memory bandwidth, what
is computed again, communication that nothing hides, the pipeline bubble, the optimizer, copies to host memory.

Overlap model: communication of an axis hides behind a window of computation, ``hidden = f * min(T, window)``, and
what is hidden still slows computation by ``overlap_slowdown``. ``lower_seconds`` takes ``f = 1`` without slowdown,
``upper_seconds`` takes ``f = 0``: they bound the overlap, not the error of the kernel rates.
Left out: stragglers, failures, checkpoints, evaluation, warm-up.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.equation import equation
from toolkit.estimate.communication import dense_parameters_per_gpu, value_bytes
from toolkit.estimate.flop import (
    attention_dims,
    forward_flop_per_token,
    model_flop_per_token,
    recomputed_flop,
    utilization,
)
from toolkit.estimate.matmul import Rates, matmul_seconds, memory_seconds, rates
from toolkit.estimate.pipeline import bubble_seconds
from toolkit.estimate.precision import state_precision
from toolkit.estimate.work import LayerWork, layer_work
from toolkit.estimates import CommunicationEstimate, StepEstimate
from toolkit.model import ModelSpec
from toolkit.numeric import Number, ceil_div, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


class LayerSeconds(NamedTuple):
    """Seconds of one average layer for one micro batch, and of the head with the loss."""

    forward: Number
    backward: Number
    core: Number  # the attention core alone, forward
    head: Number  # forward and backward
    attention: Number  # attention kernels, forward and backward: what ring attention hides behind


@equation("T4", "max(device, kernels*start)")
def launch_bound(device: Number, kernels: float, start: float) -> Number:
    """A pass cannot be faster than the host starts its kernels."""
    return maximum(device, kernels * start)


@equation("T5", "T - f*min(T, window)")
def exposed(seconds: Number, window: Number, fraction: float) -> Number:
    """Seconds of communication left over after hiding behind a window of computation."""
    return seconds - fraction * minimum(seconds, window)


@equation("T6", "where(full, forward, where(selective, core, 0))")
def recompute_seconds(recompute: Number, forward: Number, core: Number) -> Number:
    """Seconds of one layer that run again in the backward pass of one micro batch."""
    return where(recompute == 2, forward, where(recompute == 1, core, 0.0))


@equation("T7", "P*bytes*traffic/(bandwidth*e)")
def optimizer_seconds(parameters: Number, moved: Number, bandwidth: float) -> Number:
    """The optimizer reads and writes every state once: bound by memory."""
    return parameters * moved / bandwidth


@equation("T8", "P*bytes/(link*e)")
def copy_seconds(parameters: Number, bytes_each: float, bandwidth: float) -> Number:
    """Copies between device and host memory over the host link."""
    return parameters * bytes_each / bandwidth


@equation("T9", "P*gpus_per_node/rate")
def host_adam_seconds(parameters: Number, ranks_per_node: Number, rate: float) -> Number:
    """Adam on the host: the ranks of a node share its memory bandwidth."""
    return parameters * ranks_per_node / rate


def step(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    communication: CommunicationEstimate,
    calibration: Calibration,
) -> StepEstimate:
    """Seconds of one optimizer step with bounds, tokens/s per GPU, MFU and HFU (both over the dense peak)."""
    s, sent, c = strategy, communication, calibration
    work = layer_work(model, workload)
    rate = rates(
        cluster.accelerator,
        workload.precision,
        workload.sequence_length,
        attention_dims(model)[0],
        c["sustained_matmul_fraction"],
    )
    layer = layer_seconds(work, rate, workload, s, c)
    layers, micro = 1.0 * ceil_div(work.layers, s.pp), 1.0 * s.gradient_accumulation_steps
    again = recompute_seconds(s.recompute, layer.forward, layer.core)

    # an uneven split leaves a layer out beside the head: the slowest stage is the last or a full one
    spared = minimum(1.0, layers * s.pp - work.layers)
    one = layer.forward + layer.backward
    tail = maximum(layer.head - spared * (one + again), 0.0)
    compute = micro * (layers * one + tail)
    recompute = micro * layers * again
    forward_window, backward_window = layers * layer.forward, layers * (layer.backward + again)
    windows = _data_windows(s, micro, forward_window, backward_window)

    def parts(tp: float, cp: float, ep: float, pp: float, dp: float, slowdown: float) -> tuple[Number, ...]:
        """Exposed seconds by axis and the bubble, for given hidden fractions."""
        tp_seconds = exposed(sent.tp_seconds, sent.tp_seconds, tp)
        cp_seconds = exposed(sent.cp_seconds, micro * layers * layer.attention, cp)
        ep_seconds = exposed(sent.ep_seconds, sent.ep_seconds, ep)
        pp_seconds = exposed(sent.pp_seconds, sent.pp_seconds, pp)
        hidable = sent.dp_seconds - sent.dp_unhidable_seconds
        dp_seconds = sent.dp_unhidable_seconds + exposed(hidable, windows, dp)
        dp_seconds = dp_seconds + slowdown * dp * minimum(hidable, windows)
        inside = (tp_seconds + cp_seconds + ep_seconds) / micro
        stage = layers * (one + again) + inside
        bubble = bubble_seconds(s.pp, s.virtual_pipeline_stages, stage)
        return tp_seconds, cp_seconds, ep_seconds, pp_seconds, dp_seconds, bubble

    likely = parts(
        c["tp_hidden_fraction"],
        c["cp_hidden_fraction"],
        c["ep_hidden_fraction"],
        where(s.virtual_pipeline_stages > 1, c["pp_hidden_fraction"], 0.0),
        c["dp_hidden_fraction"],
        c["overlap_slowdown"],
    )
    best = parts(1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
    worst = parts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    updated = _updated_parameters(work, s, layers)
    optimizer, copies, hidden_copies = _optimizer(cluster, work, workload, s, c, rate, updated, micro)
    offload = copies + hidden_copies * (1.0 - c["offload_hidden_fraction"])
    overhead = c["step_overhead_seconds"]

    base = compute + recompute + optimizer + overhead
    seconds = base + sum(likely) + offload
    gpus = 1.0 * s.tp * s.pp * s.cp * s.dp
    tokens = float(workload.global_batch_size) * workload.sequence_length
    forward = forward_flop_per_token(model, workload)
    model_flop = tokens * model_flop_per_token(model, workload)
    redone = tokens * recomputed_flop(s.recompute, forward.layers, forward.attention)
    return StepEstimate(
        seconds=seconds,
        lower_seconds=minimum(seconds, base + sum(best) + copies),
        upper_seconds=maximum(seconds, base + sum(worst) + copies + hidden_copies),
        compute_seconds=compute,
        recompute_seconds=recompute,
        exposed_tp_seconds=likely[0],
        exposed_cp_seconds=likely[1],
        exposed_ep_seconds=likely[2],
        exposed_pp_seconds=likely[3],
        exposed_dp_seconds=likely[4],
        bubble_seconds=likely[5],
        optimizer_seconds=optimizer,
        offload_seconds=offload,
        overhead_seconds=overhead,
        tokens_per_second_per_gpu=tokens / seconds / gpus,
        mfu=utilization(model_flop, gpus, rate.peak, seconds),
        hfu=utilization(model_flop + redone, gpus, rate.peak, seconds),
    )


@equation("T12", "2*tokens*(sharded/tp + whole + k*expert*imbalance/tp)")
def layer_matmul_flop(
    tokens: Number, tp: Number, sharded: float, whole: float, active_experts: float, imbalance: Number
) -> Number:
    """FLOP of the matrix products of one layer on one GPU, forward."""
    return 2.0 * tokens * (sharded / tp + whole + active_experts * imbalance / tp)


@equation("T13", "bytes*(tokens*(sharded/tp + whole) + weights)")
def layer_matmul_bytes(
    bytes_each: float, tokens: Number, tp: Number, sharded: float, whole: float, weights: Number
) -> Number:
    """Bytes of operands and results of those products: activations in and out, weights once."""
    return bytes_each * (tokens * (sharded / tp + whole) + weights)


@equation("T14", "tokens*(h*per_hidden/shared + per_width/tp)")
def elementwise_bytes(tokens: Number, whole: float, sharded: float, shared: Number, tp: Number) -> Number:
    """Bytes of norms, residuals (divided only under sequence parallelism), activations, rotary positions."""
    return tokens * (whole / shared + sharded / tp)


def layer_seconds(work: LayerWork, rate: Rates, workload: Workload, s: Strategy, c: Calibration) -> LayerSeconds:
    """Seconds of the average layer and of the head for one micro batch on one GPU."""
    each = value_bytes(workload)
    fused = s.framework == "megatron"
    tokens = 1.0 * s.micro_batch_size * workload.sequence_length / s.cp
    memory = rate.memory * c["memory_fraction"]
    shared = where(s.sequence_parallel, s.tp, 1)
    imbalance = where(s.ep > 1, c["expert_imbalance"], 1.0)

    active = work.experts_per_token * work.expert_weights
    flop = layer_matmul_flop(tokens, s.tp, work.sharded_weights, work.whole_weights, active, imbalance)
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
    core_backward = 2.5 * core_flop / rate.attention_backward
    if workload.attention != "flash":
        # scores are written and read by scale-and-mask, softmax, dropout and the second product
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
    kernels = c["kernels_per_layer_fused"] if fused else c["kernels_per_layer_eager"]
    start = c["kernel_start_seconds"]
    return LayerSeconds(
        forward=launch_bound(forward, kernels, start),
        backward=launch_bound(backward, kernels, start),
        core=core,
        head=_head_seconds(work, rate, workload, s, tokens, memory, each),
        attention=core + core_backward,
    )


def _elementwise(work: LayerWork, workload: Workload, each: float) -> tuple[float, float, float, float]:
    """Bytes per token of one layer: whole and sharded, forward and backward (reads and writes of fused kernels)."""
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


@equation("T15", "3*(2*tokens*W/tp)/rate + tokens*V/tp*bytes/bandwidth")
def head_seconds(
    tokens: Number, weights: float, tp: Number, rate: float, logits_bytes: Number, memory: float
) -> Number:
    """Head and loss, forward and backward: three products and the passes over the fp32 logits."""
    return 6.0 * tokens * weights / tp / rate + logits_bytes / memory


def _head_seconds(
    work: LayerWork, rate: Rates, workload: Workload, s: Strategy, tokens: Number, memory: float, each: float
) -> Number:
    passes = 2.0 if workload.fused_cross_entropy else 7.0  # over fp32 logits: cast, maximum, exponent, sum, gradient
    logits = tokens * work.vocabulary / s.tp * 4.0 * passes
    trained = 1.0 if workload.method == "full" else 2.0 / 3.0
    return head_seconds(tokens, work.head_weights * trained, s.tp, rate.head, logits, memory)


@equation("T17", "min(m, max(1, p*(v - 1)/v))")
def final_micro_batches(pipeline: Number, virtual: Number, micro_batches: Number) -> Number:
    """Passes over a whole stage that lie between the first final gradient of a GPU and the end of its backward.

    Without interleaving every gradient becomes final in the last micro batch: one pass. With ``v`` chunks the last
    group of ``p`` micro batches runs chunk by chunk (Narayanan et al. 2021, section 2.2), so the first chunk's
    gradients are final ``v - 1`` groups earlier: ``p*(v - 1)/v`` passes.
    """
    return minimum(1.0 * micro_batches, maximum(1.0, 1.0 * pipeline * (virtual - 1.0) / virtual))


def _data_windows(s: Strategy, micro: Number, forward: Number, backward: Number) -> Number:
    """Computation beside which the data axis may communicate in one step."""
    if s.framework == "fsdp":
        return micro * (forward + backward)
    if s.framework == "ddp":
        return backward
    if s.framework == "megatron":
        passes = final_micro_batches(s.pp, s.virtual_pipeline_stages, micro)
        return passes * (backward + where(s.zero_stage > 0, forward, 0.0))
    return where(s.zero_stage == 3, micro * (forward + backward), where(s.zero_stage == 2, micro * backward, backward))


def _updated_parameters(work: LayerWork, s: Strategy, layers: Number) -> Number:
    """Parameters whose optimizer states this GPU holds (fullest stage)."""
    ends = where(
        s.pp > 1,
        maximum(work.embedding_parameters, work.head_parameters),
        work.embedding_parameters + work.head_parameters,
    )
    dense = dense_parameters_per_gpu(
        layers, work.sharded_parameters, work.replicated_parameters, ends, s.tp, work.other_parameters
    )
    routed = layers * work.expert_parameters / (1.0 * s.ep * s.etp)
    spread = s.dp_shard * s.cp if s.framework in ("megatron", "fsdp") else s.dp * s.cp
    expert_spread = maximum(1.0 * s.tp * spread / (1.0 * s.etp * s.ep), 1.0)
    return where(s.zero_stage > 0, dense / spread + routed / expert_spread, dense + routed)


@equation(
    "T16", "copies of the gradient down, of the parameters up, and each gather again when parameters are offloaded"
)
def offload_copies(
    updated: Number, micro: Number, offload: Number, down_bytes: float, up_bytes: float, bandwidth: float
) -> Number:
    """Seconds on the host link in one step: gradients every micro batch; offloaded shards are read for each pass."""
    down = copy_seconds(updated * micro, down_bytes, bandwidth)
    fetched = where(offload == 2, copy_seconds(updated * micro * 2.0, up_bytes, bandwidth), 0.0)
    return where(offload > 0, down + fetched, 0.0)


def _optimizer(
    cluster: ClusterSpec,
    work: LayerWork,
    workload: Workload,
    s: Strategy,
    c: Calibration,
    rate: Rates,
    updated: Number,
    micro: Number,
) -> tuple[Number, Number, Number]:
    """Seconds of the update, of copies that wait for it, and of copies that may hide."""
    trained = 1.0 if workload.method == "full" else work.adapter_parameters / work.total_parameters
    updated = updated * trained
    each = value_bytes(workload)
    state = state_precision(workload, s.framework)
    moved = 2.0 * (state.optimizer_states + state.master + state.parameters) + state.gradients
    traffic = c["optimizer_traffic_fused"] if s.framework == "megatron" else c["optimizer_traffic_eager"]
    on_device = optimizer_seconds(updated, moved * traffic, rate.memory * c["memory_fraction"])
    node = float(cluster.gpus_per_node)
    ranks = minimum(1.0 * s.tp * s.pp * s.cp * s.dp, node)
    on_host = host_adam_seconds(updated, ranks, c["host_adam_parameters_per_second"])
    link = max(cluster.accelerator.host_link_bytes_per_second * c["host_link_fraction"], 1e9)
    up = where(s.offload > 0, copy_seconds(updated, each, link), 0.0)
    hidden = offload_copies(updated, micro, s.offload, each, each, link)
    return where(s.offload > 0, on_host, on_device), up, hidden
