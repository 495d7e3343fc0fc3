"""Equations C10, C20 and C21: what context parallelism sends, by the way its ranks share keys and values.

megatron-core's ``cp_comm_type``: ``p2p`` passes blocks of keys and values round a ring beside the attention kernels;
``all_gather`` gathers all of them first, and nothing runs beside that; ``a2a`` exchanges heads for tokens before the
kernel and back after it (DeepSpeed-Ulysses); ``a2a+p2p`` exchanges heads inside a fast domain and rings between
domains. Left out: rank orders other than tp before cp, and the reordering of tokens in device memory.
"""

from __future__ import annotations

from toolkit.context_parallel import exchanging_ranks
from toolkit.equation import equation
from toolkit.estimate.collectives import (
    Fabric,
    all_gather_seconds,
    all_to_all_seconds,
    group,
    point_to_point_seconds,
    ring_bytes,
)
from toolkit.estimate.data_parallel import Traffic
from toolkit.estimate.work import LayerWork
from toolkit.model import ModelSpec
from toolkit.numeric import Number, where
from toolkit.strategy import Strategy


@equation("C10", "m*layers*(passes + 1)*(cp - 1)")
def ring_attention_sends(micro_batches: Number, layers: Number, passes: Number, cp: Number) -> Number:
    """Key/value blocks that each rank sends: ``cp - 1`` forward (again when recomputed), twice that backward.

    Source: ring attention, arXiv 2310.01889, section 3.
    """
    return 1.0 * micro_batches * layers * (passes + 1.0) * (cp - 1.0)


@equation("C20", "m*layers*(passes + 1)")
def key_value_gathers(micro_batches: Number, layers: Number, passes: Number) -> Number:
    """Gathers of all keys and values: one in each forward pass; backward one more, and a reduce-scatter of gradients.

    Source: Llama 3, arXiv 2407.21783, section 3.3.2; Transformer Engine 2.x ``AttnFuncWithCPAndKVAllGather``.
    """
    return 1.0 * micro_batches * layers * (passes + 1.0)


@equation("C21", "m*layers*passes")
def head_exchanges(micro_batches: Number, layers: Number, passes: Number) -> Number:
    """Rounds of all-to-alls: queries, keys and values before attention and its output after it, the same backward.

    Source: DeepSpeed-Ulysses, arXiv 2309.14509, section 3.2; Transformer Engine 2.x ``AttnFuncWithCPAndQKVOA2A``.
    """
    return 1.0 * micro_batches * layers * passes


def context_traffic(
    net: Fabric, model: ModelSpec, work: LayerWork, s: Strategy, layers: Number, passes: Number, message: Number
) -> tuple[Traffic, Number]:
    """Traffic of the context axis, and the seconds of it that no attention kernel can hide."""
    block = message / work.hidden * work.key_value_width / s.tp  # keys and values of this rank's tokens
    micro = s.gradient_accumulation_steps
    if s.cp_method == "p2p":
        return _ring(net, s, ring_attention_sends(micro, layers, passes, s.cp), s.cp, 1, block), 0.0
    if s.cp_method == "all_gather":
        number, whole = key_value_gathers(micro, layers, passes), block * s.cp
        seconds = number * all_gather_seconds(net, group(net, s.cp, s.tp), whole)
        return Traffic(number * ring_bytes(s.cp, whole), seconds), seconds
    queries = message / work.hidden * work.query_width / s.tp  # queries and output
    number = head_exchanges(micro, layers, passes)
    if s.cp_method == "a2a":
        sent = _exchange(net, s, number, s.cp, queries, block)
        return sent, sent.seconds
    inner = exchanging_ranks(model, net.domain, s)
    sent = _exchange(net, s, number, inner, queries, block)
    rings = s.cp // inner
    ring = _ring(net, s, ring_attention_sends(micro, layers, passes, rings), rings, inner, block)
    return Traffic(sent.sent + ring.sent, sent.seconds + ring.seconds), sent.seconds


def _ring(net: Fabric, s: Strategy, number: Number, ranks: Number, apart: Number, block: Number) -> Traffic:
    """``number`` blocks to the next of ``ranks`` ranks that lie ``tp * apart`` GPUs from one another."""
    stride = 1 * s.tp * apart
    # the ring's slowest edge leaves the fast domain as soon as the group does
    stride = where(stride * ranks <= net.domain, stride, net.domain)
    return Traffic(number * block, number * point_to_point_seconds(net, stride, block))


def _exchange(net: Fabric, s: Strategy, number: Number, ranks: Number, queries: Number, block: Number) -> Traffic:
    """Four all-to-alls: queries and output are as wide as one another, so are keys and values."""
    where_ = group(net, ranks, s.tp)
    seconds = 2.0 * all_to_all_seconds(net, where_, 0.5 * queries) + 2.0 * all_to_all_seconds(net, where_, 0.5 * block)
    return Traffic(number * ring_bytes(ranks, queries + block), number * seconds)
