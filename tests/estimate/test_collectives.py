"""Collectives against published measurements, and identities."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.machines import cluster
from toolkit.cluster import ClusterSpec, Link
from toolkit.estimate.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    fabric,
    group,
    point_to_point_seconds,
    ring_bytes,
)

MEASURED = tomllib.loads((Path(__file__).parent.parent / "published" / "collectives.toml").read_text())["measured"]
SECONDS = {"all_reduce": all_reduce_seconds, "all_gather": all_gather_seconds, "all_to_all": all_to_all_seconds}


def _machines(row: dict[str, object]) -> ClusterSpec:
    inside, outside = row["intra_node"], row["inter_node"]
    return cluster(
        row["gpus"],
        nodes=row["nodes"],
        gpus_per_node=row["gpus"] // row["nodes"],
        intra_node=Link(name=inside[0], bandwidth_bytes_per_second=inside[1] * 1e9, latency_seconds=2e-6),
        inter_node=Link(name=outside[0], bandwidth_bytes_per_second=outside[1] * 1e9, latency_seconds=2e-6),
    )


@pytest.mark.parametrize(
    "row", MEASURED, ids=lambda row: f"{row['collective']}-{row['gpu']}-{row['gpus']}-{row['mib']}MiB"
)
def test_measured_collectives(row: dict[str, object]) -> None:
    """Within 35 % of the published time from 64 MiB up: the fabric, not one machine, is what is modelled."""
    net = fabric(_machines(row))
    seconds = SECONDS[row["collective"]](net, group(net, row["gpus"], 1), row["mib"] * 2.0**20)
    assert seconds == pytest.approx(row["microseconds"] * 1e-6, rel=0.35)


def test_ring_bytes() -> None:
    """nccl-tests, doc/PERFORMANCE.md: (n - 1)/n for all-gather, twice that for all-reduce."""
    assert ring_bytes(8, 800.0) == 700.0
    assert ring_bytes(1, 800.0) == 0.0


def test_a_group_of_one_is_free() -> None:
    """Nothing is sent, nothing is waited for."""
    net = fabric(cluster(16))
    alone = group(net, 1, 1)
    assert [seconds(net, alone, 1e9) for seconds in SECONDS.values()] == [0.0, 0.0, 0.0]


def test_rank_order_decides_the_link() -> None:
    """tp 8 stays inside a node of 8; dp with stride 8 leaves it at once; tp 4 leaves two members per node."""
    net = fabric(cluster(64))
    assert group(net, 8, 1) == group(net, 8, 1).__class__(size=8, inside=8, domains=1)
    assert group(net, 8, 8).domains == 8
    assert (group(net, 16, 4).inside, group(net, 16, 4).domains) == (2, 8)
    assert group(net, 16, 1).domains == 2
    near, far = point_to_point_seconds(net, 4, 1e9), point_to_point_seconds(net, 8, 1e9)
    assert far > 4 * near


def test_a_rack_wide_domain_is_inside() -> None:
    """NVL72: sixteen nodes of four GPUs are one fast domain."""
    rack = cluster(64, gpus_per_node=4, nodes=16, fast_domain_gpus=72)
    net = fabric(rack)
    assert group(net, 64, 1).domains == 1


def test_a_mesh_is_slower_for_two() -> None:
    """xGMI: two GPUs have one of seven links. MI300X: 48 GB/s bus for two, 313 for eight (ml-engineering)."""
    link = Link(
        name="xGMI full mesh",
        bandwidth_bytes_per_second=448e9,
        peer_bandwidth_bytes_per_second=64e9,
        latency_seconds=2e-6,
    )
    net = fabric(cluster(8, intra_node=link))
    size = 4.0 * 2**30
    two = size / all_reduce_seconds(net, group(net, 2, 1), size) / 1e9
    eight = 1.75 * size / all_reduce_seconds(net, group(net, 8, 1), size) / 1e9
    assert two == pytest.approx(48, rel=0.1)
    assert eight == pytest.approx(313, rel=0.1)


@given(
    size=st.integers(1, 4096),
    stride=st.integers(1, 1024),
    message=st.floats(1.0, 1e12),
    faster=st.floats(1.0, 16.0),
)
def test_a_faster_link_is_never_slower(size: int, stride: int, message: float, faster: float) -> None:
    """Monotone in both links, for every collective."""
    slow = fabric(cluster(8))
    for net in (fabric(cluster(8, inside=300e9 * faster)), fabric(cluster(8, outside=25e9 * faster))):
        for seconds in SECONDS.values():
            there = group(net, size, stride)
            assert seconds(net, there, message) <= seconds(slow, there, message) * (1 + 1e-12)
