"""Failures, restarts and storage of a cluster: what its file states, else what was published, said as assumed."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from toolkit.cluster import ClusterSpec, is_assumed
from toolkit.resilience import Reliability
from toolkit.units import GB, format_rate

DATA = Path(__file__).parent.parent / "data" / "reliability" / "published.toml"
HOUR, MINUTE = 3600.0, 60.0


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Failures that somebody counted."""

    summary: str
    accelerator: str
    gpu_hours: float
    failures: float
    gpu_hours_per_failure: float  # rounded, as it is quoted
    source: str


class Assumed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is taken where a cluster says nothing."""

    gpu_hours_per_failure: float
    gpu_hours_per_failure_of: str  # a fleet
    restart_minutes: float
    restart_low_minutes: float
    restart_high_minutes: float
    restart_source: str
    storage_gb_per_second_per_node: float
    storage_source: str


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data file."""

    assumed: Assumed
    fleets: dict[str, Fleet]


@lru_cache(maxsize=1)
def published() -> Published:
    """Failure rates of known fleets, and the figures that are assumed."""
    import tomllib

    return msgspec.convert(tomllib.loads(DATA.read_text(encoding="utf-8")), Published)


def reliability_of(cluster: ClusterSpec) -> Reliability | None:
    """What to expect of a cluster; None for machines without accelerators, of which nothing was published."""
    if cluster.accelerator.is_cpu:
        return None
    known = published()
    other, said = known.assumed, []
    failure, restart = cluster.gpu_seconds_per_failure, cluster.restart_seconds
    storage = cluster.storage_bandwidth_bytes_per_second
    if not failure:
        failure = other.gpu_hours_per_failure * HOUR
        fleet = known.fleets[other.gpu_hours_per_failure_of]
        said.append(
            f"a failure every {other.gpu_hours_per_failure:,.0f} GPU-hours is assumed, as of {fleet.summary} "
            f"({fleet.source}); gpu_hours_per_failure of the cluster file says otherwise"
        )
    if not restart:
        restart = other.restart_minutes * MINUTE
        said.append(
            f"{other.restart_minutes:g} minutes from a failure to reading the checkpoint are assumed "
            f"({other.restart_low_minutes:g} to {other.restart_high_minutes:g} were published); restart_minutes of the "
            "cluster file says otherwise"
        )
    if not storage:
        storage = other.storage_gb_per_second_per_node * GB * cluster.nodes
        said.append(
            f"checkpoints at {format_rate(storage)} are assumed, {other.storage_gb_per_second_per_node:g} GB/s a node "
            "as BLOOM-176B wrote them; storage_gb_per_second of the cluster file says otherwise"
        )
    for field, words in (
        ("gpu_seconds_per_failure", "the failure rate"),
        ("restart_seconds", "the time of a restart"),
        ("storage_bandwidth_bytes_per_second", "the storage bandwidth"),
    ):
        if getattr(cluster, field) and is_assumed(cluster.sources.get(field, "stated")):
            said.append(f"{words} of {cluster.name} is marked as assumed in its file")
    return Reliability(
        gpu_seconds_per_failure=failure,
        restart_seconds=restart,
        storage_bytes_per_second=storage,
        assumed=tuple(said),
    )
