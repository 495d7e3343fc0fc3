"""Equations T5, T6, T17, T19, T20 and T29: seconds of one optimizer step, by part.

``step(model, cluster, workload, strategy, communication, calibration)`` adds what one GPU of the slowest pipeline
stage does: matrix products and attention at their reached rates, element-wise operations at memory bandwidth, what
is computed again, communication that nothing hides, the pipeline bubble, the optimizer, copies to host memory.

Overlap model: communication of an axis hides behind a window of computation, ``hidden = f * min(T, window)``, and
what is hidden still slows computation (``overlap_traffic``, ``overlap_slowdown``). ``lower_seconds`` takes ``f = 1``
without slowdown, ``upper_seconds`` takes ``f = 0``: they bound the overlap, not the error of the kernel rates.
Left out: failures, checkpoints, evaluation, warm-up.
"""

from __future__ import annotations

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.equation import equation
from toolkit.estimate.flop import (
    attention_dims,
    forward_flop_per_token,
    model_flop_per_token,
    recomputed_flop,
    utilization,
)
from toolkit.estimate.layer_time import LayerSeconds, layer_seconds, reference_head_seconds
from toolkit.estimate.matmul import rates
from toolkit.estimate.pipeline import balanced_layers, bubble_seconds, zero_bubble_seconds
from toolkit.estimate.preference import in_sequences, is_preference, reference_seconds
from toolkit.estimate.recomputation import recomputed_share
from toolkit.estimate.redone import selective_flop, selective_seconds
from toolkit.estimate.update import update_seconds, updated_parameters
from toolkit.estimate.work import layer_work
from toolkit.estimates import CommunicationEstimate, StepEstimate
from toolkit.model import ModelSpec
from toolkit.numeric import Number, ceil_div, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


@equation("T5", "T - f*min(T, window)")
def exposed(seconds: Number, window: Number, fraction: float) -> Number:
    """Seconds of communication left over after hiding behind a window of computation.

    Source: definition of overlap.
    """
    return seconds - fraction * minimum(seconds, window)


@equation("T6", "[full]*forward + [selective]*core")
def recompute_seconds(recompute: Number, forward: Number, core: Number) -> Number:
    """Seconds of one layer that run again in the backward pass of one micro batch.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 5.
    """
    return where(recompute == 2, forward, where(recompute == 1, core, 0.0))


@equation("T19", "m*(l*t + tail)")
def micro_batches_seconds(micro_batches: Number, layers: Number, layer_seconds: Number, tail: Number) -> Number:
    """``m`` micro batches through the ``l`` layers of the slowest stage, and what its head adds.

    Source: definition.
    """
    return micro_batches * (layers * layer_seconds + tail)


@equation("T20", "U + X + kappa*S/bandwidth*hidden")
def data_axis_seconds(
    unhidable: Number, exposed_seconds: Number, sent: Number, hidden: Number, traffic: float, bandwidth: float
) -> Number:
    """Data axis: what nothing can hide, what is left exposed, and what the hidden part costs the computation.

    The ``hidden`` part of the ``S`` bytes that a GPU sends takes memory bandwidth and processors from the computation
    beside it: as many seconds as ``kappa`` bytes of memory traffic for each byte sent. A slow network therefore costs
    hardly anything while it is hidden.

    Source: bytes that NCCL's kernels read and write; ``kappa`` is a calibration.
    """
    return unhidable + exposed_seconds + traffic * sent / bandwidth * hidden


def step(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    communication: CommunicationEstimate,
    calibration: Calibration,
) -> StepEstimate:
    """Seconds of one optimizer step with bounds, tokens/s per GPU, MFU and HFU (both over the dense peak)."""
    workload, s = in_sequences(workload, strategy)
    sent, c = communication, calibration
    work = layer_work(model, workload)
    sustained = c["sustained_matmul_fraction"]
    rate = rates(cluster.accelerator, workload, attention_dims(model)[0], s.framework, sustained)
    layer = layer_seconds(work, rate, workload, s, c)
    layers, micro = 1.0 * ceil_div(work.layers, s.pp), 1.0 * s.gradient_accumulation_steps
    share = recomputed_share(s.recompute_layers, layers)
    again = recompute_seconds(
        s.recompute, share * layer.forward, selective_seconds(model, workload, layer, s.framework)
    )

    one = layer.forward + layer.backward
    layers, head, spared = _slowest_stage(s, work.layers, layers, one + again, layer.head)
    recompute = micro_batches_seconds(micro, layers, again, 0.0)
    forward_window, backward_window = layers * layer.forward, layers * (layer.backward + again)
    windows = _data_windows(s, micro, forward_window, backward_window)
    reference: Number = 0.0
    if is_preference(workload):
        head_forward = reference_head_seconds(work, rate, workload, s, c)
        reference = reference_seconds(micro, layers, layer.forward, head_forward)
        windows = windows + where(s.zero_stage == 3, reference, 0.0)  # whose gathers run beside it

    def parts(tp: float, cp: float, ep: float, pp: float, dp: float, slowdown: float) -> tuple[Number, ...]:
        """Exposed seconds by axis and the bubble, for given hidden fractions."""
        tp_seconds = _tensor_seconds(s, sent, micro * layers * layer.gradient, tp)
        ring = sent.cp_seconds - sent.cp_unhidable_seconds
        cp_seconds = sent.cp_unhidable_seconds + exposed(ring, micro * layers * layer.attention, cp)
        window = micro * layers * (one if workload.expert_overlap else 0.0)
        ep_seconds = exposed(sent.ep_seconds, window, ep) + slowdown * ep * minimum(sent.ep_seconds, window)
        # the host issues collectives too: they run while the device would wait for it
        inside = tp_seconds + cp_seconds + ep_seconds
        seen = 1.0 - minimum(inside, micro * layers * layer.idle) / maximum(inside, 1e-9)
        tp_seconds, cp_seconds, ep_seconds = tp_seconds * seen, cp_seconds * seen, ep_seconds * seen
        pp_seconds = exposed(sent.pp_seconds, sent.pp_seconds, pp)
        hidable = sent.dp_seconds - sent.dp_unhidable_seconds
        hiding = exposed(hidable, windows, dp)
        hidden = dp * minimum(hidable, windows) / maximum(sent.dp_seconds, 1e-9)
        traffic = c["overlap_traffic"] if slowdown else 0.0
        dp_seconds = data_axis_seconds(sent.dp_unhidable_seconds, hiding, sent.dp_bytes, hidden, traffic, rate.memory)
        inside = inside * seen / micro
        bubble = _bubble_seconds(s, layers, layer, again, inside)
        return tp_seconds, cp_seconds, ep_seconds, pp_seconds, dp_seconds, bubble

    blocked = 0.0 if workload.launch_blocking else 1.0
    likely = parts(
        blocked * c["tp_hidden_fraction"],
        blocked * c["cp_hidden_fraction"],
        blocked * c["ep_hidden_fraction"],
        where(s.virtual_pipeline_stages > 1, blocked * c["pp_hidden_fraction"], 0.0),
        blocked * c["dp_hidden_fraction_torch" if s.framework in ("ddp", "fsdp") else "dp_hidden_fraction"],
        c["overlap_slowdown"],
    )
    inside = (likely[0] + likely[1] + likely[2]) / (micro * layers)
    tail = maximum(head - spared * (one + again + inside), 0.0)
    compute = micro_batches_seconds(micro, layers, one, tail) + reference
    best = parts(1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
    worst = parts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    updated = updated_parameters(work, s, layers)
    optimizer, copies, hidden_copies = update_seconds(cluster, work, workload, s, c, rate, updated, micro)
    offload = copies + hidden_copies * (1.0 - c["offload_hidden_fraction"])
    gpus = 1.0 * s.tp * s.pp * s.cp * s.dp
    nodes = gpus / cluster.gpus_per_node
    waiting = straggler_seconds(compute + recompute, nodes, c["slow_node_share"], c["slow_node_loss"])
    overhead = c["step_overhead_seconds"] + waiting

    base = compute + recompute + optimizer + overhead
    seconds = base + sum(likely) + offload
    tokens = float(workload.global_batch_size) * workload.sequence_length
    forward = forward_flop_per_token(model, workload)
    model_flop = tokens * model_flop_per_token(model, workload)
    redone = tokens * recomputed_flop(
        s.recompute, share * forward.layers, selective_flop(model, workload, forward, s.framework)
    )
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


@equation("T29", "t*loss*share*nodes/(1 + share*nodes)")
def straggler_seconds(computed: Number, nodes: Number, share: float, loss: float) -> Number:
    """Seconds that all wait for a slow node: a step takes as long as its slowest node.

    A node slower by ``loss`` is one of ``1/share`` in the mean of clusters, by an exponential law among them; then
    ``share nodes/(1 + share nodes)`` of the jobs have one. Source: MegaScale, arXiv 2402.15627, section 6.3.
    """
    return loss * computed * (share * nodes / (1.0 + share * nodes))


@equation("T17", "min(m, max(1, p*(v - 1)/v))")
def final_micro_batches(pipeline: Number, virtual: Number, micro_batches: Number) -> Number:
    """Passes over a whole stage that lie between the first final gradient of a GPU and the end of its backward.

    Without interleaving every gradient becomes final in the last micro batch: one pass. With ``v`` chunks the last
    group of ``p`` micro batches runs chunk by chunk (Narayanan et al. 2021, section 2.2), so the first chunk's
    gradients are final ``v - 1`` groups earlier: ``p*(v - 1)/v`` passes.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
    """
    return minimum(1.0 * micro_batches, maximum(1.0, 1.0 * pipeline * (virtual - 1.0) / virtual))


def _slowest_stage(
    s: Strategy, all_layers: int, layers: Number, layer_seconds: Number, head: Number
) -> tuple[Number, Number, Number]:
    """Layers of the slowest stage, the seconds of the head on it, and layers that its stage has less than others."""
    if s.vocabulary in ("spread", "interlaced"):
        return layers, head / (1.0 * s.pp), 0.0
    if s.vocabulary == "balanced":
        balanced = balanced_layers(all_layers, s.pp, head / layer_seconds)
        return where(s.pp > 1, balanced, layers), where(s.pp > 1, 0.0, head), 0.0
    # an uneven split leaves a layer out beside the head, with its communication: the slowest stage is the last or a
    # full one
    return layers, head, minimum(1.0, layers * s.pp - all_layers)


def _bubble_seconds(s: Strategy, layers: Number, layer: LayerSeconds, again: Number, inside: Number) -> Number:
    """The bubble of the schedule; ``inside`` are exposed seconds of tp, cp and ep for one micro batch of a stage."""
    if s.schedule == "1f1b":
        stage = layers * (layer.forward + layer.backward + again) + inside
        return bubble_seconds(s.pp, s.virtual_pipeline_stages, stage)
    forward = layers * layer.forward + 0.5 * inside
    activations = layers * (layer.backward - layer.gradient + again) + 0.5 * inside
    delayed = 1.0 if s.schedule == "zb-1p" else 2.0
    return zero_bubble_seconds(s.pp, forward, activations, layers * layer.gradient, delayed)


def _tensor_seconds(s: Strategy, sent: CommunicationEstimate, gradient: Number, fraction: float) -> Number:
    """Exposed seconds of the tensor axis (T5): what the backward pass can hide behind gradients of weights.

    User buffers cut every collective of the layers into pieces that run beside the product before or after it, so
    they hide behind three products (forward and the two of the backward pass).
    """
    if s.tp_overlap == "none":
        return exposed(sent.tp_seconds, 0.0, fraction)
    if s.tp_overlap == "all":
        return exposed(sent.tp_seconds, 3.0 * gradient, fraction)
    # products that begin as column-parallel ones are half of all
    return sent.tp_seconds - sent.tp_hidable_seconds + exposed(sent.tp_hidable_seconds, 0.5 * gradient, fraction)


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
