"""Link latencies against the small all-reduces that they are derived from."""

import tomllib
from pathlib import Path

import pytest

from toolkit.registry.clusters import load_cluster

PUBLISHED = tomllib.loads((Path(__file__).parents[1] / "published" / "small_messages.toml").read_text())


def step_seconds(row: dict[str, float]) -> float:
    """Seconds of one of the ``2 (n - 1)`` ring steps, bytes at full rate taken off."""
    link = load_cluster(row["cluster"]).intra_node
    steps = 2 * (row["gpus"] - 1)
    moved = steps / row["gpus"] * row["bytes"] / link.bandwidth_bytes_per_second
    return (row["microseconds"] * 1e-6 - moved) / steps


@pytest.mark.parametrize("row", PUBLISHED["all_reduce"], ids=lambda row: row["source"])
def test_latency_is_one_step_of_the_smallest_all_reduce(row: dict[str, float]) -> None:
    assert load_cluster(row["cluster"]).intra_node.latency_seconds == pytest.approx(step_seconds(row), rel=0.05)


@pytest.mark.parametrize("row", PUBLISHED["upper_bound"], ids=lambda row: row["source"])
def test_assumed_latency_is_below_what_a_larger_message_took(row: dict[str, float]) -> None:
    link = load_cluster(row["cluster"]).intra_node
    assert link.latency_source.startswith("assumed")
    assert 0.3 * step_seconds(row) < link.latency_seconds < step_seconds(row)
