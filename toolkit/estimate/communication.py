"""Equations C8..C13: what each parallel axis sends in one optimizer step, and how long it takes alone.

``communication(model, cluster, workload, strategy, calibration)`` returns bytes sent and seconds per GPU and
step for the axes tp, cp, ep, pp and dp. Ranks are ordered tp-cp-ep-dp-pp (Megatron-core's default, megatron-core
0.16.1 ``parallel_state.py``): the tensor group is contiguous, the data group strides over it, so each group is
inside a fast domain or across domains by arithmetic. How much of it is hidden is decided in ``step``.

What data parallelism sends was counted, not taken from papers (DeepSpeed 0.19.8, torch 2.13):
ZeRO-1 and ZeRO-2 all-reduce gradients and then all-gather parameters (3P, not 2P), ZeRO-2 reduces after every
micro batch; ZeRO-3 gathers in the forward pass and, beyond ``stage3_max_live_parameters``, again in the backward.
Left out: the gradient norm, loss averaging, DeepSpeed's quantised collectives, tied-embedding reductions.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.deepspeed_defaults import MAX_LIVE_PARAMETERS
from toolkit.equation import equation
from toolkit.estimate.collectives import (
    Fabric,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    fabric,
    group,
    point_to_point_seconds,
    ring_bytes,
)
from toolkit.estimate.work import LayerWork, layer_work
from toolkit.estimates import CommunicationEstimate
from toolkit.model import ModelSpec
from toolkit.numeric import Number, ceil_div, maximum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


class Traffic(NamedTuple):
    """Bytes sent and seconds of one axis, per GPU and optimizer step."""

    sent: Number
    seconds: Number


def value_bytes(workload: Workload) -> float:
    """Bytes of an activation or a working parameter."""
    return 4.0 if workload.precision == "fp32" else 2.0


def gradient_bytes(workload: Workload, framework: str) -> float:
    """Bytes per gradient on the wire.

    Megatron and DDP reduce in fp32 (megatron-core 0.16.1 ``grad_reduce_in_fp32``; DDP keeps fp32 parameters under
    autocast); DeepSpeed reduces in the parameter type whatever it accumulates in (0.19.8 engine.py), and accelerate
    sets FSDP's reduce_dtype to it.
    """
    if workload.precision == "fp32" or workload.gradient_accumulation_dtype == "fp32" and framework != "deepspeed":
        return 4.0
    if workload.gradient_accumulation_dtype == "bf16":
        return 2.0
    return 4.0 if framework in ("megatron", "ddp") else 2.0


@equation("C8", "b*s/cp*h*bytes")
def activation_message(micro_batch: Number, sequence: float, cp: Number, hidden: float, bytes_each: float) -> Number:
    """Bytes of the hidden state of one micro batch on one context-parallel rank."""
    return 1.0 * micro_batch * sequence / cp * hidden * bytes_each


@equation("C9", "m*(2*passes*(dense + expert*(etp > 1))*layers + 2)")
def tensor_collectives(
    micro_batches: Number, layers: Number, passes: Number, attention_and_dense: float, expert_mlps: Number
) -> Number:
    """All-reduces (or pairs of reduce-scatter and all-gather) of one step on the fullest pipeline stage.

    One after attention and one after the MLP in the forward pass, the same in the backward, and again in the
    forward when everything is recomputed (``passes`` 2 or 3); two more for embedding and head.
    Source: Megatron-LM, arXiv 1909.08053, section 3; Korthikanti et al. 2022, section 4.2.2 (same bytes with SP).
    """
    return micro_batches * (passes * (attention_and_dense + expert_mlps) * layers + 2.0)


@equation("C10", "m*layers*(passes + 1)*(cp - 1)")
def ring_attention_sends(micro_batches: Number, layers: Number, passes: Number, cp: Number) -> Number:
    """Key/value blocks that each rank sends: ``cp - 1`` forward (again when recomputed), twice that backward.

    Source: ring attention, arXiv 2310.01889, section 3.
    """
    return 1.0 * micro_batches * layers * (passes + 1.0) * (cp - 1.0)


@equation("C11", "b*s/cp*k*h*bytes*etp/tp")
def expert_message(tokens_bytes: Number, experts_per_token: float, etp: Number, tp: Number) -> Number:
    """Bytes that a rank sends to the experts of its tokens, each token to ``k`` of them (GShard, arXiv 2006.16668)."""
    return tokens_bytes * experts_per_token * etp / tp


@equation("C12", "2*m*v where p > 1")
def pipeline_messages(micro_batches: Number, virtual: Number, pipeline: Number) -> Number:
    """Activations forward and gradients backward over each stage boundary; interleaving multiplies by ``v``."""
    return where(pipeline > 1, 2.0 * micro_batches * virtual, 0.0)


@equation("C13", "layers*(sharded/tp + replicated) + embedding/tp + other")
def dense_parameters_per_gpu(
    layers: Number, sharded: float, replicated: float, ends: Number, tp: Number, other: float
) -> Number:
    """Parameters on the fullest stage that every data-parallel rank holds (no routed experts)."""
    return layers * (sharded / tp + replicated) + ends / tp + other


def communication(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy, calibration: Calibration
) -> CommunicationEstimate:
    """Bytes and seconds of every axis for one strategy or columns of them."""
    net, work, s = fabric(cluster), layer_work(model, workload), strategy
    layers = ceil_div(work.layers, s.pp)
    passes = 2.0 + (s.recompute == 2)
    each = value_bytes(workload)
    message = activation_message(s.micro_batch_size, float(workload.sequence_length), s.cp, work.hidden, each)
    tp = _tensor(net, work, s, layers, passes, message)
    cp = _context(net, work, s, layers, passes, message, each)
    ep = _expert(net, work, s, layers, passes, message)
    pp = _pipeline(net, s, message)
    dp, unhidable = _data(net, work, workload, s, layers)
    return CommunicationEstimate(
        tp_bytes=tp.sent,
        cp_bytes=cp.sent,
        ep_bytes=ep.sent,
        pp_bytes=pp.sent,
        dp_bytes=dp.sent,
        tp_seconds=tp.seconds,
        cp_seconds=cp.seconds,
        ep_seconds=ep.seconds,
        pp_seconds=pp.seconds,
        dp_seconds=dp.seconds,
        dp_unhidable_seconds=unhidable,
    )


def _tensor(net: Fabric, work: LayerWork, s: Strategy, layers: Number, passes: Number, message: Number) -> Traffic:
    ranks = group(net, s.tp, 1)
    expert_mlps = work.expert_fraction * (s.etp > 1)
    number = tensor_collectives(s.gradient_accumulation_steps, layers, passes, 1.0 + work.dense_fraction, expert_mlps)
    reduce = all_reduce_seconds(net, ranks, message)
    scatter_gather = 2.0 * all_gather_seconds(net, ranks, message)
    each = where(s.sequence_parallel, scatter_gather, reduce) if s.framework == "megatron" else reduce
    return Traffic(number * 2.0 * ring_bytes(s.tp, message), number * each)


def _context(
    net: Fabric, work: LayerWork, s: Strategy, layers: Number, passes: Number, message: Number, each: float
) -> Traffic:
    block = message / work.hidden * work.key_value_width / s.tp
    number = ring_attention_sends(s.gradient_accumulation_steps, layers, passes, s.cp)
    # the ring's slowest edge leaves the fast domain as soon as the group does
    stride = where(s.tp * s.cp <= net.domain, s.tp, net.domain)
    return Traffic(number * block, number * point_to_point_seconds(net, stride, block))


def _expert(net: Fabric, work: LayerWork, s: Strategy, layers: Number, passes: Number, message: Number) -> Traffic:
    if not work.expert_fraction:
        return Traffic(0.0, 0.0)
    sent = expert_message(message, work.experts_per_token, s.etp, s.tp)
    number = 2.0 * passes * s.gradient_accumulation_steps * layers * work.expert_fraction
    ranks = group(net, s.ep, s.etp)
    return Traffic(number * ring_bytes(s.ep, sent), number * all_to_all_seconds(net, ranks, sent))


def _pipeline(net: Fabric, s: Strategy, message: Number) -> Traffic:
    number = pipeline_messages(s.gradient_accumulation_steps, s.virtual_pipeline_stages, s.pp)
    # each tensor-parallel rank sends its own part (Narayanan et al. 2021, section 4.1; always so with SP)
    part = message / s.tp
    stride = 1.0 * s.tp * s.cp * s.dp
    return Traffic(number * part, number * point_to_point_seconds(net, stride, part))


def _data(net: Fabric, work: LayerWork, workload: Workload, s: Strategy, layers: Number) -> tuple[Traffic, Number]:
    """Traffic of the data axis, and the seconds of it that no computation can hide."""
    ends = where(
        s.pp > 1,
        maximum(work.embedding_parameters, work.head_parameters),
        work.embedding_parameters + work.head_parameters,
    )
    dense = dense_parameters_per_gpu(
        layers, work.sharded_parameters, work.replicated_parameters, ends, s.tp, work.other_parameters
    )
    sent, seconds, late = _data_group(net, work, workload, s, layers, dense, s.dp * s.cp, s.tp, s.dp_shard * s.cp)
    if work.expert_parameters:
        routed = 1.0 * layers * work.expert_parameters / (1.0 * s.ep * s.etp)
        size = maximum(s.tp * s.cp * s.dp // (s.etp * s.ep), 1)
        shard = maximum(s.tp * s.cp * s.dp_shard // (s.etp * s.ep), 1)
        more = _data_group(net, work, workload, s, layers, routed, size, s.etp * s.ep, shard)
        sent, seconds, late = sent + more[0], seconds + more[1], late + more[2]
    return Traffic(sent, seconds), late


def _data_group(
    net: Fabric,
    work: LayerWork,
    workload: Workload,
    s: Strategy,
    layers: Number,
    parameters: Number,
    size: Number,
    stride: Number,
    shard: Number,
) -> tuple[Number, Number, Number]:
    """Bytes, seconds and unhidable seconds for ``parameters`` per GPU reduced over one group of ranks."""
    trained = 1.0 if workload.method == "full" else work.adapter_parameters / work.total_parameters
    if s.framework == "deepspeed":
        # its buckets (h^2 elements) and prefetches (0.9 h^2) hold about one matrix each; the others send whole layers
        layers = layers * work.kernels
    gradients = parameters * trained * gradient_bytes(workload, s.framework) / layers
    weights = parameters * value_bytes(workload) / layers
    steps = s.gradient_accumulation_steps
    everyone = group(net, size, stride)
    reduce = layers * all_reduce_seconds(net, everyone, gradients)
    reduce_bytes = 2.0 * layers * ring_bytes(size, gradients)
    if s.framework == "ddp":
        return reduce_bytes, reduce, 0.0
    gather = layers * all_gather_seconds(net, everyone, weights)
    gather_bytes = layers * ring_bytes(size, weights)
    scatter = layers * all_gather_seconds(net, everyone, gradients)
    scatter_bytes = layers * ring_bytes(size, gradients)
    if s.framework == "megatron":
        sharded = s.zero_stage > 0
        step_gather, step_bytes = gather * trained, gather_bytes * trained
        return (
            where(sharded, scatter_bytes + step_bytes, reduce_bytes),
            where(sharded, scatter + step_gather, reduce),
            0.0,
        )
    if s.framework == "fsdp":
        copies = maximum(size // shard, 1)
        inner, outer = group(net, shard, stride), group(net, copies, stride * shard)
        in_gather = layers * all_gather_seconds(net, inner, weights)
        in_scatter = layers * all_gather_seconds(net, inner, gradients)
        across = layers * all_reduce_seconds(net, outer, gradients / shard)
        gathers = where(s.zero_stage >= 3, 2.0, 1.0)
        seconds = steps * (gathers * in_gather + in_scatter + across)
        sent = (
            steps
            * layers
            * (
                gathers * ring_bytes(shard, weights)
                + ring_bytes(shard, gradients)
                + 2.0 * ring_bytes(copies, gradients / shard)
            )
        )
        return sent, seconds, 0.0
    # DeepSpeed
    repeats = where(s.zero_stage == 2, steps, 1)
    live = min(1.0, MAX_LIVE_PARAMETERS / work.total_parameters)
    near = group(net, where(s.hpz > 1, s.hpz, size), stride)
    again = layers * all_gather_seconds(net, near, weights) * (1.0 - live)
    again_bytes = layers * ring_bytes(near.size, weights) * (1.0 - live)
    late = where((s.zero_stage == 1) | (s.zero_stage == 2), gather * trained, 0.0)
    full, late_bytes = s.zero_stage == 3, where((s.zero_stage == 1) | (s.zero_stage == 2), gather_bytes * trained, 0.0)
    sent = where(full, steps * (gather_bytes + again_bytes + scatter_bytes), repeats * reduce_bytes + late_bytes)
    seconds = where(full, steps * (gather + again + scatter), repeats * reduce + late)
    return sent, seconds, late
