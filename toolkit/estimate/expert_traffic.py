"""Equations C11, C30 and C31: what expert parallelism sends for the tokens of one rank.

Tokens move to the ranks of their experts and back, forward and backward: an all-to-all over the expert-parallel
group by the share of tokens that a tensor-parallel rank holds; with expert tensor parallelism the tokens that arrived
are then gathered over its ranks, and their results scattered (megatron-core 0.16.1 moe/token_dispatcher.py).

A plain all-to-all sends every copy of a token by itself. DeepEP and its kin (HybridEP) send a token once to each node
that has experts of it, and spread it there over the fast links. Left out: 8-bit dispatch, group-limited routing.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.estimate.collectives import (
    Fabric,
    all_gather_seconds,
    all_to_all_seconds,
    deduplicated_all_to_all_seconds,
    group,
    ring_bytes,
)
from toolkit.estimate.work import LayerWork
from toolkit.numeric import Number, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


@equation("C11", "b*s/cp*k*h*bytes/tp")
def expert_message(tokens_bytes: Number, experts_per_token: float, tp: Number) -> Number:
    """Bytes that a rank sends to the experts of its tokens, each token to ``k`` of them (GShard, arXiv 2006.16668).

    Source: GShard, arXiv 2006.16668; each rank of the tensor group sends its own share of the sequence.
    """
    return tokens_bytes * experts_per_token / tp


@equation("C30", "(d - 1)*(1 - (1 - 1/d)^k)")
def other_domains_of_a_token(domains: Number, experts_per_token: int) -> Number:
    """Domains beside its own, of ``d``, in which a token has at least one of its ``k`` experts, drawn evenly.

    Source: the occupancy problem; a token crosses once: github.com/deepseek-ai/DeepEP, internode dispatch.
    """
    none: Number = 1.0
    for _ in range(experts_per_token):
        none = none * (1.0 - 1.0 / domains)
    return (domains - 1.0) * (1.0 - none)


@equation("C31", "passes*(all_to_all + gather)*m*layers*expert_layers")
def expert_seconds(passes: Number, exchange: Number, gather: Number, layers: Number) -> Number:
    """Seconds of one step: dispatch and combination are a pair of exchanges in each of ``passes`` passes over a layer.

    ``exchange`` and ``gather`` are the seconds of the pair; ``layers`` counts layers with experts times micro batches.

    Source: megatron-core 0.16.1 moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
    """
    return passes * (exchange + gather) * layers


def expert_traffic(
    net: Fabric, work: LayerWork, workload: Workload, s: Strategy, layers: Number, passes: Number, message: Number
) -> tuple[Number, Number]:
    """Bytes and seconds of the expert axis per GPU and step; ``message`` is the hidden state of a micro batch."""
    if not work.expert_fraction:
        return 0.0, 0.0
    sent = expert_message(message, work.experts_per_token, s.tp)
    ranks = group(net, s.ep, s.etp)
    gathered = sent * s.etp
    exchange = all_to_all_seconds(net, ranks, sent)
    if workload.expert_dispatch == "deepep":
        once = message / s.tp * other_domains_of_a_token(ranks.domains, int(work.experts_per_token))
        exchange = deduplicated_all_to_all_seconds(net, ranks, sent, once)
    gather = where(s.etp > 1, all_gather_seconds(net, group(net, s.etp, 1), gathered), 0.0)
    again = passes + (s.recompute == 1) * ("moe" in workload.recompute_modules.split("+"))
    times = 1.0 * s.gradient_accumulation_steps * layers * work.expert_fraction
    moved = 2.0 * again * times * (ring_bytes(s.ep, sent) + ring_bytes(s.etp, gathered))
    return moved, expert_seconds(again, 2.0 * exchange, 2.0 * gather, times)
