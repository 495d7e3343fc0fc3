"""Equations C1..C7, C19 and C22: bytes and seconds of collectives over a group of GPUs.

Symbols: ``S`` bytes of the whole message (the gathered or the reduced buffer), ``n`` GPUs in the group, ``k`` of
them inside one fast domain, ``B`` reached bytes/s per GPU and direction. Costs follow the ring algorithms of
Thakur et al. 2005 (doi 10.1177/1094342005051521) and the bus-bandwidth definitions of nccl-tests
(doc/PERFORMANCE.md); reached fractions and latencies are rows of data/efficiency/fabric.toml.

A group that crosses fast domains is bound by its slowest edge: rings enter and leave a domain over the network
cards of all ``k`` members, so the ring moves ``min(B_in, k * B_out)`` bytes/s. Left out: congestion from other
groups, in-network reduction across nodes, protocol switches of NCCL at small sizes.
"""

from __future__ import annotations

import msgspec

from toolkit.cluster import ClusterSpec
from toolkit.equation import equation
from toolkit.numeric import Number, ceil_div, interpolate, maximum, minimum, where
from toolkit.registry.efficiency import FabricCurve, fabric_curve

# log2 as a piecewise linear curve: exact at powers of two, equal for scalars and columns
_POWERS = tuple(float(2**i) for i in range(21))
_LOGS = tuple(float(i) for i in range(21))
# Of a start across domains, for each domain that an all-to-all sends to: sends overlap, assumed
START_OF_A_PEER = 0.1


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """The two links of a cluster with what collectives reach of them, as plain numbers."""

    domain: int  # GPUs joined by the fast link
    inside_bandwidth: float
    peer_bandwidth: float  # of one pair where there is no switch, else 0
    outside_bandwidth: float
    inside_latency: float  # one hop of a ring
    outside_latency: float
    inside: FabricCurve
    outside: FabricCurve


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """``size`` ranks that lie ``stride`` apart: ``inside`` of them share a fast domain, in ``domains`` domains."""

    size: Number
    inside: Number
    domains: Number


def fabric(cluster: ClusterSpec) -> Fabric:
    """The fabric of a cluster; a fast domain that spans several nodes uses the intra-node link."""
    inside, outside = fabric_curve(cluster.intra_node), fabric_curve(cluster.inter_node)
    return Fabric(
        domain=cluster.fast_domain,
        inside_bandwidth=float(cluster.intra_node.bandwidth_bytes_per_second),
        peer_bandwidth=float(cluster.intra_node.peer_bandwidth_bytes_per_second),
        outside_bandwidth=float(cluster.inter_node.bandwidth_bytes_per_second),
        inside_latency=cluster.intra_node.latency_seconds + inside.hop_seconds,
        outside_latency=cluster.inter_node.latency_seconds + outside.hop_seconds,
        inside=inside,
        outside=outside,
    )


def group(fabric: Fabric, size: Number, stride: Number) -> Group:
    """Where the members of a group lie when ranks fill one fast domain after the other."""
    per_domain = maximum(1, fabric.domain // maximum(stride, 1))
    inside = minimum(size, per_domain)
    return Group(size=size, inside=inside, domains=ceil_div(size, inside))


@equation("C1", "B_in; across domains min(B_in, k*B_out), k*B_out where k = 1")
def group_bandwidth(members: Number, domains: Number, inside: Number, outside: Number) -> Number:
    """Bytes/s per GPU of a ring: the fast link, or the network cards of the ``k`` members in a domain.

    Source: bus bandwidth of nccl-tests, doc/PERFORMANCE.md; every GPU drives its own network card.
    """
    across = 1.0 * members * outside
    across = where(members > 1, minimum(inside, across), across)
    return where(domains > 1, across, inside)


@equation("C2", "start + (n - domains)*hop_in + [domains > 1]*domains*hop_out")
def ring_latency(size: Number, domains: Number, start: float, hop_inside: float, hop_outside: float) -> Number:
    """Seconds that a ring of ``n`` takes for an empty message: one hop per member, some across domains.

    Source: all-gathers of 16 to 256 GPUs (aws-gpu-communication-benchmark), fitted.
    """
    return start + (size - domains) * hop_inside + (domains > 1) * domains * hop_outside


@equation("C3", "(n - 1)/n*S")
def ring_bytes(size: Number, message: Number) -> Number:
    """Bytes that each GPU sends in an all-gather or a reduce-scatter of ``S`` (all-to-all: the same).

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return (size - 1.0) / size * message


@equation("C4", "[n > 1]*(sent/B + latency)")
def transfer_seconds(size: Number, sent: Number, bandwidth: Number, latency: Number) -> Number:
    """Latency plus bytes over bandwidth (alpha-beta model, Hockney 1994).

    Source: the alpha-beta model of Hockney 1994, doi 10.1016/S0167-8191(06)80021-9.
    """
    return where(size > 1, sent / bandwidth + latency, 0.0)


@equation("C5", "2*(start + hops*hop_in + log2(domains)*hop_out)")
def tree_latency(hops: Number, domains: Number, start: float, hop_inside: float, hop_outside: float) -> Number:
    """Seconds of an empty all-reduce over a tree of domains (NCCL's double binary tree, up and down).

    Inside a domain the tree is a chain of ``k - 1`` hops; a switch that adds and copies (NVLS) makes it one.

    Source: the double binary tree of NCCL 2.4; NVLS and NVLSTree of NCCL 2.18.
    """
    return 2.0 * (start + hops * hop_inside + interpolate(domains, _POWERS, _LOGS) * hop_outside)


@equation("C22", "min(q*tree, 2*((q - 1)*start + ring))")
def queued_latency(queued: Number, tree: Number, ring: Number, start: float) -> Number:
    """Seconds that ``q`` empty all-reduces take which wait in one stream: in a ring, hops are paid once.

    A rank of a ring begins the next message as soon as its part of the last is sent, so the ring fills once and each
    further message costs a start. A tree is filled and emptied by every message, as its leaves wait for the root.

    Source: NCCL's stream order; the ring algorithm of Thakur et al. 2005, doi 10.1177/1094342005051521.
    """
    return minimum(queued * tree, 2.0 * ((queued - 1.0) * start + ring))


@equation("C19", "start + 2*hop_in")
def switch_latency(start: float, hop_inside: float) -> float:
    """Seconds of an empty all-gather or reduce-scatter in which the switch of one fast domain copies or adds.

    One hop up to the switch and one down, whatever the number of GPUs. Source: NVLS of NCCL 2.19.
    """
    return start + 2.0 * hop_inside


@equation("C6", "[n > 1]*(max((k - 1)/n*S/B_in, (n - k)/n*S/B_out) + latency)")
def all_to_all(
    size: Number, inside: Number, message: Number, bandwidth_in: Number, bandwidth_out: float, latency: Number
) -> Number:
    """Seconds to send ``S/n`` to each of ``n - 1`` peers, of which ``n - k`` sit behind the network card.

    Source: local and remote parts run side by side; GTC25 s72583 measures 48 GB/s of 50 over four nodes.
    """
    local = (inside - 1.0) / size * message / bandwidth_in
    remote = (size - inside) / size * message / bandwidth_out
    return where(size > 1, maximum(local, remote) + latency, 0.0)


@equation("C7", "min(B, (n - 1)*B_peer)")
def mesh_bandwidth(members: Number, bandwidth: float, peer_bandwidth: float) -> Number:
    """Without a switch each pair has its own link: ``n`` members of a domain use ``n - 1`` links each.

    Source: MI300X, stas00/ml-engineering: 48 GB/s for two GPUs, 313 for eight.
    """
    return minimum(bandwidth, (maximum(members, 2) - 1.0) * peer_bandwidth)


def _inside(fabric: Fabric, members: Number, fraction: float) -> Number:
    if not fabric.peer_bandwidth:
        return fabric.inside_bandwidth * fraction
    return mesh_bandwidth(members, fabric.inside_bandwidth, fabric.peer_bandwidth) * fraction


def _start(fabric: Fabric) -> float:
    return fabric.inside.start_seconds


def all_gather_seconds(fabric: Fabric, where_: Group, message: Number, queued: Number = 1.0) -> Number:
    """All-gather of ``message`` bytes in all, by ring or switch; a reduce-scatter costs the same (C1 to C4, C19).

    ``queued`` of them that wait one behind the other fill the ring once.
    """
    bandwidth = group_bandwidth(
        where_.inside,
        where_.domains,
        _inside(fabric, where_.inside, fabric.inside.ring_fraction),
        fabric.outside_bandwidth * fabric.outside.ring_fraction,
    )
    latency = ring_latency(where_.size, where_.domains, _start(fabric), fabric.inside_latency, fabric.outside_latency)
    if fabric.inside.in_switch:
        switch = switch_latency(_start(fabric), fabric.inside_latency)
        latency = where(where_.domains > 1, latency, minimum(latency, switch))
    latency = (queued - 1.0) * _start(fabric) + latency
    return transfer_seconds(where_.size, queued * ring_bytes(where_.size, message), bandwidth, latency)


def all_reduce_seconds(fabric: Fabric, where_: Group, message: Number, queued: Number = 1.0) -> Number:
    """All-reduce of ``message`` bytes: twice the bytes of an all-gather, the better of ring and tree (C2, C5).

    ``queued`` of them wait one behind the other (C22).
    """
    bandwidth = group_bandwidth(
        where_.inside,
        where_.domains,
        _inside(fabric, where_.inside, fabric.inside.all_reduce_fraction),
        fabric.outside_bandwidth * fabric.outside.all_reduce_fraction,
    )
    start, hop_in, hop_out = _start(fabric), fabric.inside_latency, fabric.outside_latency
    ring = ring_latency(where_.size, where_.domains, start, hop_in, hop_out)
    hops = minimum(where_.inside - 1.0, 1.0) if fabric.inside.in_switch else where_.inside - 1.0
    tree = tree_latency(hops, where_.domains, start, hop_in, hop_out)
    sent = 2.0 * queued * ring_bytes(where_.size, message)
    return transfer_seconds(where_.size, sent, bandwidth, queued_latency(queued, tree, ring, start))


def all_to_all_seconds(fabric: Fabric, where_: Group, message: Number) -> Number:
    """All-to-all in which each GPU holds ``message`` bytes, spread evenly over the group (C6)."""
    peers = where(where_.domains > 1, where_.domains * fabric.outside.start_seconds * START_OF_A_PEER, 0.0)
    return all_to_all(
        where_.size,
        where_.inside,
        message,
        _inside(fabric, where_.inside, fabric.inside.all_to_all_fraction),
        fabric.outside_bandwidth * fabric.outside.all_to_all_fraction,
        _start(fabric) + peers,
    )


def deduplicated_all_to_all_seconds(fabric: Fabric, where_: Group, message: Number, once: Number) -> Number:
    """All-to-all that sends ``once`` bytes to other domains and spreads them there: ``message`` bytes on fast links."""
    peers = where(where_.domains > 1, where_.domains * fabric.outside.start_seconds * START_OF_A_PEER, 0.0)
    inside = _inside(fabric, where_.inside, fabric.inside.all_to_all_fraction)
    local = (where_.inside - 1.0) / where_.inside * message / inside
    remote = once / (fabric.outside_bandwidth * fabric.outside.all_to_all_fraction)
    return where(where_.size > 1, maximum(local, remote) + _start(fabric) + peers, 0.0)


def point_to_point_seconds(fabric: Fabric, stride: Number, message: Number) -> Number:
    """One message to the GPU ``stride`` ranks away."""
    near = stride < fabric.domain
    inside = _inside(fabric, 2, fabric.inside.all_to_all_fraction)
    bandwidth = where(near, inside, fabric.outside_bandwidth * fabric.outside.all_to_all_fraction)
    latency = where(near, fabric.inside_latency, fabric.outside_latency) + _start(fabric)
    return message / bandwidth + latency
