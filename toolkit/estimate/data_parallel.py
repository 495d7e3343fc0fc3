"""Equations C13 to C16: what data parallelism sends in one optimizer step.

Counted, not taken from papers (DeepSpeed 0.19.8, torch 2.13): ZeRO-1 and ZeRO-2 all-reduce gradients and then
all-gather parameters (3P, not 2P), ZeRO-2 reduces after every micro batch; ZeRO-3 gathers in the forward pass and,
beyond ``stage3_max_live_parameters``, again in the backward. Routed experts are reduced over their own group.
Left out: the gradient norm, quantised collectives of ZeRO++, reductions of tied embeddings between stages.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.deepspeed_defaults import MAX_LIVE_PARAMETERS
from toolkit.equation import equation
from toolkit.estimate.collectives import Fabric, all_gather_seconds, all_reduce_seconds, group, ring_bytes
from toolkit.estimate.precision import value_bytes
from toolkit.estimate.preference import is_preference
from toolkit.estimate.work import LayerWork
from toolkit.numeric import Number, maximum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


class Traffic(NamedTuple):
    """Bytes sent and seconds of one axis, per GPU and optimizer step."""

    sent: Number
    seconds: Number


def gradient_bytes(workload: Workload, framework: str) -> float:
    """Bytes per gradient on the wire.

    Megatron and DDP reduce in fp32 (megatron-core 0.16.1 ``grad_reduce_in_fp32``; DDP keeps fp32 parameters under
    autocast); DeepSpeed reduces in the parameter type whatever it accumulates in (0.19.8 engine.py), and accelerate
    sets FSDP's reduce_dtype to it.
    """
    if workload.precision == "fp32" or workload.gradient_accumulation_dtype == "fp32" and framework != "deepspeed":
        return 4.0
    if workload.gradient_accumulation_dtype == "bf16" or workload.engine == "deepspeed":
        return 2.0
    return 4.0 if framework in ("megatron", "ddp") else 2.0


@equation("C13", "layers*(sharded/tp + replicated) + ends/tp + other")
def dense_parameters_per_gpu(
    layers: Number, sharded: float, replicated: float, ends: Number, tp: Number, other: float
) -> Number:
    """Parameters on the fullest stage that every data-parallel rank holds (no routed experts).

    Source: Megatron-LM, arXiv 1909.08053, section 3; the embedding and the head sit on the end stages.
    """
    return layers * (sharded / tp + replicated) + ends / tp + other


@equation("C14", "stage 0: R; 1: R + G; 2: m*R + G; 3: m*(G + G_again + S)")
def zero_step(
    stage: Number, micro_batches: Number, reduce: Number, gather: Number, again: Number, scatter: Number
) -> Number:
    """DeepSpeed: all-reduces ``R``, gathers ``G`` and reduce-scatters ``S`` of one step, in bytes or in seconds.

    Source: counted with DeepSpeed 0.19.8. Stages 1 and 2 all-reduce gradients (stage_1_and_2.py 1694-1712) and gather
    parameters after the step, not the 2P of ZeRO (arXiv 1910.02054, section 7). At stage 3 the gather of the backward
    pass is the part of the parameters beyond ``stage3_max_live_parameters``.
    """
    partitioned = reduce * where(stage == 2, micro_batches, 1) + where(stage == 0, 0.0, gather)
    return where(stage == 3, micro_batches * (gather + again + scatter), partitioned)


@equation("C15", "m*((1 + [stage 3]*(1 - t))*G + S + R_across)")
def fsdp_step(
    stage: Number, micro_batches: Number, gather: Number, tail: float, scatter: Number, across: Number
) -> Number:
    """FSDP: gathers ``G`` for forward and backward and scatters ``S`` inside a shard group after every micro batch.

    The last unit, a share ``t`` of the parameters, stays gathered from forward to backward. Hybrid sharding adds the
    all-reduce of a shard across groups (arXiv 2304.11277, section 3.2.2); SHARD_GRAD_OP (stage 2) keeps all of the
    gathered parameters for the backward.

    Source: arXiv 2304.11277, section 3.2; accelerate 1.15 ``utils/fsdp_utils.py:857`` (counted in dry runs).
    """
    return micro_batches * (where(stage >= 3, 2.0 - tail, 1.0) * gather + scatter + across)


@equation("C16", "R; with the distributed optimizer S + R_across + G")
def megatron_step(stage: Number, reduce: Number, gather: Number, scatter: Number, across: Number) -> Number:
    """Megatron: one all-reduce of gradients, or scatter and gather with the distributed optimizer.

    Several instances of it (``--num-distributed-optimizer-instances``; ``zero1`` smaller than the data group in
    InternEvo) scatter and gather inside one and all-reduce a shard across them.
    Source: megatron-core 0.16.1, core/distributed/param_and_grad_buffer.py; gradients stay on the rank until the last
    micro batch.
    """
    return where(stage > 0, scatter + across + gather, reduce)


@equation("C18", "max(P/max(40e6, 1e6*n), 1)")
def megatron_buckets(parameters: Number, size: Number) -> Number:
    """Collectives that Megatron cuts ``P`` parameters into for a data group of ``n``: larger ones for larger groups.

    Source: megatron-core 0.16.1 core/distributed/distributed_data_parallel.py, ``bucket_size``.
    """
    return maximum(1.0 * parameters / maximum(4.0e7, 1.0e6 * size), 1.0)


def dense_parameters(work: LayerWork, s: Strategy, layers: Number) -> Number:
    """Parameters outside the experts on the fullest GPU, by equation C13 (a stage holds one of embedding and head)."""
    ends = where(
        s.pp > 1,
        maximum(work.embedding_parameters, work.head_parameters),
        work.embedding_parameters + work.head_parameters,
    )
    return dense_parameters_per_gpu(
        layers, work.sharded_parameters, work.replicated_parameters, ends, s.tp, work.other_parameters
    )


def data_traffic(
    net: Fabric, work: LayerWork, workload: Workload, s: Strategy, layers: Number
) -> tuple[Traffic, Number]:
    """Traffic of the data axis, and the seconds of it that no computation can hide."""
    dense = dense_parameters(work, s, layers)
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
    trained = work.trained_fraction
    if s.framework == "deepspeed":
        # its buckets (h^2 elements) and prefetches (0.9 h^2) hold about one matrix each; the others send whole layers
        layers = layers * work.kernels
    elif s.framework == "megatron":
        layers = megatron_buckets(parameters * trained, size)
    gradients = parameters * trained * gradient_bytes(workload, s.framework) / layers
    # parameters kept in fp8 alone are gathered so (megatron-core fp8_param_gather)
    weights = parameters * (1.0 if workload.weights == "fp8" else value_bytes(workload)) / layers
    renewed = weights * trained
    steps = s.gradient_accumulation_steps
    everyone = group(net, size, stride)
    # Megatron's own buckets queue in one stream; other optimizers over its layers wait for each message
    queued, alone = (layers, 1.0) if s.framework == "megatron" and workload.engine == "default" else (1.0, layers)
    reduce = alone * all_reduce_seconds(net, everyone, gradients, queued)
    reduce_bytes = 2.0 * layers * ring_bytes(size, gradients)
    if s.framework == "ddp":
        return reduce_bytes, reduce, 0.0
    copies = maximum(size // shard, 1)
    inner, outer = group(net, shard, stride), group(net, copies, stride * shard)
    once = 1.0 if is_preference(workload) else 0.0  # a gather more, for the reference's forward pass
    if s.framework == "fsdp":
        tail = (work.head_parameters or work.embedding_parameters) / work.total_parameters  # tied: one and the same
        seconds = fsdp_step(
            s.zero_stage,
            steps,
            layers * all_gather_seconds(net, inner, weights),
            tail,
            layers * (all_gather_seconds(net, inner, gradients) + once * all_gather_seconds(net, inner, weights)),
            layers * all_reduce_seconds(net, outer, gradients / shard),
        )
        sent = fsdp_step(
            s.zero_stage,
            steps,
            layers * ring_bytes(shard, weights),
            tail,
            layers * (ring_bytes(shard, gradients) + once * ring_bytes(shard, weights)),
            2.0 * layers * ring_bytes(copies, gradients / shard),
        )
        return sent, seconds, 0.0
    if s.framework == "megatron":
        seconds = megatron_step(
            s.zero_stage,
            reduce,
            alone * all_gather_seconds(net, inner, renewed, queued),
            alone * all_gather_seconds(net, inner, gradients, queued),
            alone * all_reduce_seconds(net, outer, gradients / shard, queued),
        )
        sent = megatron_step(
            s.zero_stage,
            reduce_bytes,
            layers * ring_bytes(shard, renewed),
            layers * ring_bytes(shard, gradients),
            2.0 * layers * ring_bytes(copies, gradients / shard),
        )
        gathered = where(s.zero_stage > 0, alone * all_gather_seconds(net, inner, renewed, queued), 0.0)
        late = {"none": seconds, "gradients": gathered, "all": 0.0}[s.dp_overlap]
        return sent, seconds, late
    scatter = layers * all_gather_seconds(net, everyone, gradients)
    scatter_bytes = layers * ring_bytes(size, gradients)
    gather = layers * all_gather_seconds(net, everyone, weights)
    gather_bytes = layers * ring_bytes(size, weights)
    near = group(net, where(s.hpz > 1, s.hpz, size), stride)
    dead = 1.0 - min(1.0, MAX_LIVE_PARAMETERS / work.total_parameters)
    if work.trained_fraction < 1.0:  # the backward pass of a frozen base ends before the embedding
        dead = max(dead - work.embedding_parameters / work.total_parameters, 0.0)
    again = dead * layers * all_gather_seconds(net, near, weights)
    again_bytes = dead * layers * ring_bytes(near.size, weights)
    again, again_bytes = again + once * gather, again_bytes + once * gather_bytes
    # after the step stages 1 and 2 gather what was trained, stage 3 gathers everything for each pass
    part = where(s.zero_stage == 3, 1.0, trained)
    sent = zero_step(s.zero_stage, steps, reduce_bytes, gather_bytes * part, again_bytes, scatter_bytes)
    seconds = zero_step(s.zero_stage, steps, reduce, gather * part, again, scatter)
    late = where((s.zero_stage == 1) | (s.zero_stage == 2), gather * trained, 0.0)
    return sent, seconds, late
