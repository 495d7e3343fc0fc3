"""Equations C8 to C12: what each parallel axis sends in one optimizer step, and how long it takes alone.

``communication(model, cluster, workload, strategy, calibration)`` returns bytes sent and seconds per GPU and
step for the axes tp, cp, ep, pp and dp (dp: ``data_parallel``). Ranks are ordered tp-cp-ep-dp-pp (megatron-core
0.16.1 ``parallel_state.py``): the tensor group is contiguous, the data group strides over it, so whether a group
lies inside a fast domain is arithmetic. How much of it is hidden is decided in ``step``.
"""

from __future__ import annotations

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.equation import equation
from toolkit.estimate.collectives import (
    Fabric,
    all_gather_seconds,
    all_reduce_seconds,
    fabric,
    group,
    point_to_point_seconds,
    ring_bytes,
)
from toolkit.estimate.context_traffic import context_traffic
from toolkit.estimate.data_parallel import Traffic, data_traffic
from toolkit.estimate.expert_traffic import expert_traffic
from toolkit.estimate.precision import value_bytes
from toolkit.estimate.preference import in_sequences
from toolkit.estimate.recomputation import recomputed_share
from toolkit.estimate.work import LayerWork, layer_work
from toolkit.estimates import CommunicationEstimate
from toolkit.model import ModelSpec
from toolkit.numeric import Number, ceil_div, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


@equation("C8", "b*s/cp*h*bytes")
def activation_message(micro_batch: Number, sequence: float, cp: Number, hidden: float, bytes_each: float) -> Number:
    """Bytes of the hidden state of one micro batch on one context-parallel rank.

    Source: shapes of Megatron-LM, arXiv 1909.08053.
    """
    return 1.0 * micro_batch * sequence / cp * hidden * bytes_each


@equation("C9", "m*((passes + [sp]/2)*(mixers + mlps)*layers + 1 + [p = 1] + [sp]/2)")
def tensor_collectives(
    micro_batches: Number,
    layers: Number,
    passes: Number,
    sequence_parallel: Number,
    mixers_and_mlps: float,
    pp: Number,
) -> Number:
    """All-reduces (or pairs of reduce-scatter and all-gather) of one step on the fullest pipeline stage.

    One after attention and one after the MLP in the forward pass, the same in the backward, and again in the
    forward when everything is recomputed (``passes`` 2 or 3); one more for the head and, where it is on the same
    stage, for the embedding. Sequence parallelism keeps the input of a column-parallel product cut, the head's too,
    and gathers it again for the gradient of weights: half a pair (counted in dry runs).
    Source: Megatron-LM, arXiv 1909.08053, section 3; Korthikanti et al. 2022, section 4.2.2; megatron-core 0.16.1
    tensor_parallel/layers.py:470-520.
    """
    again = 0.5 * sequence_parallel
    return micro_batches * ((passes + again) * mixers_and_mlps * layers + where(pp > 1, 1.0, 2.0) + again)


@equation("C17", "m*((mixers + mlps)*layers + 1)")
def hidable_collectives(micro_batches: Number, layers: Number, mixers_and_mlps: float) -> Number:
    """Of those, all-reduces or pairs that a product of the backward pass can hide: the gradient of activations of a
    column-parallel product is reduced beside the gradient of its weights, for which the input is gathered beside
    the gradient of activations; one more for the head.

    Nothing runs beside the collectives of a forward pass, nor beside the gather of a row-parallel product's gradient.
    Source: megatron-core 0.16.1 tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.
    """
    return micro_batches * (mixers_and_mlps * layers + 1.0)


@equation("C12", "[p > 1]*2*m*v")
def pipeline_messages(micro_batches: Number, virtual: Number, pipeline: Number) -> Number:
    """Activations forward and gradients backward over each stage boundary; interleaving multiplies by ``v``.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
    """
    return where(pipeline > 1, 2.0 * micro_batches * virtual, 0.0)


@equation("C32", "number - [p = 2]*m")
def pipeline_sends(number: Number, micro_batches: Number, pipeline: Number) -> Number:
    """Of the messages over a stage's boundaries, those that one rank sends: of two stages each is an end, and sends
    nothing outward; with more there is one between others.

    Source: megatron-core 0.16.1 pipeline_parallel/schedules.py; a dry run of it.
    """
    return number - where(pipeline == 2, 1.0 * micro_batches, 0.0)


def communication(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy, calibration: Calibration
) -> CommunicationEstimate:
    """Bytes and seconds of every axis for one strategy or columns of them."""
    workload, s = in_sequences(workload, strategy)
    net, work = fabric(cluster), layer_work(model, workload)
    layers = ceil_div(work.layers, s.pp)
    passes = 2.0 + (s.recompute == 2) * recomputed_share(s.recompute_layers, layers)
    each = value_bytes(workload)
    message = activation_message(s.micro_batch_size, float(workload.sequence_length), s.cp, work.hidden, each)
    tp, tp_hidable = _tensor(net, work, s, layers, passes, message)
    cp, cp_unhidable = context_traffic(net, model, work, s, layers, passes, message)
    ep_bytes, ep_seconds = expert_traffic(net, work, workload, s, layers, passes, message)
    pp = _pipeline(net, s, message)
    dp, unhidable = data_traffic(net, work, workload, s, layers)
    return CommunicationEstimate(
        tp_bytes=tp.sent,
        cp_bytes=cp.sent,
        ep_bytes=ep_bytes,
        pp_bytes=pp.sent,
        dp_bytes=dp.sent,
        tp_seconds=tp.seconds,
        cp_seconds=cp.seconds,
        ep_seconds=ep_seconds,
        pp_seconds=pp.seconds,
        dp_seconds=dp.seconds,
        dp_unhidable_seconds=unhidable,
        tp_hidable_seconds=tp_hidable,
        cp_unhidable_seconds=cp_unhidable,
    )


def _tensor(
    net: Fabric, work: LayerWork, s: Strategy, layers: Number, passes: Number, message: Number
) -> tuple[Traffic, Number]:
    ranks, micro, blocks = group(net, s.tp, 1), s.gradient_accumulation_steps, work.tensor_blocks
    cut = s.sequence_parallel if s.framework == "megatron" else 0
    number = tensor_collectives(micro, layers, passes, cut, blocks, s.pp)
    each = where(cut, 2.0 * all_gather_seconds(net, ranks, message), all_reduce_seconds(net, ranks, message))
    hidable = hidable_collectives(micro, layers, blocks) * each
    return Traffic(number * 2.0 * ring_bytes(s.tp, message), number * each), hidable


def _pipeline(net: Fabric, s: Strategy, message: Number) -> Traffic:
    number = pipeline_messages(s.gradient_accumulation_steps, s.virtual_pipeline_stages, s.pp)
    # each tensor-parallel rank sends its own part (Narayanan et al. 2021, section 4.1; always so with SP)
    part = message / s.tp
    stride = 1.0 * s.tp * s.cp * s.dp
    sends = pipeline_sends(number, s.gradient_accumulation_steps, s.pp)
    return Traffic(sends * part, number * point_to_point_seconds(net, stride, part))
