"""Failure rates as published, and what a cluster states instead."""

from pathlib import Path

import pytest

from toolkit.registry.clusters import resolve_cluster
from toolkit.registry.reliability import published, reliability_of

HOUR = 3600.0


def test_published_rates_follow_from_what_was_counted() -> None:
    fleets = published().fleets
    assert fleets["llama-3-405b"].gpu_hours == 16_384 * 54 * 24 and fleets["llama-3-405b"].failures == 419
    assert fleets["meta-rsc-1"].gpu_hours == 1000 * 24 * 8
    for fleet in fleets.values():
        assert fleet.gpu_hours_per_failure == pytest.approx(fleet.gpu_hours / fleet.failures, rel=0.005)
        assert "arXiv" in fleet.source


def test_what_a_cluster_does_not_say_is_assumed_and_named() -> None:
    cluster = resolve_cluster("64", cluster="dgx-h100")
    found = reliability_of(cluster)
    assert found is not None
    assert found.gpu_seconds_per_failure == 50_700 * HOUR
    assert found.restart_seconds == 600.0
    assert found.storage_bytes_per_second == 8 * 1.2e9
    assert len(found.assumed) == 3
    for words in (
        "50,700 GPU-hours is assumed",
        "Llama 3 405B",
        "gpu_hours_per_failure",
        "restart_minutes",
        "storage_gb",
    ):
        assert any(words in sentence for sentence in found.assumed), words


def cluster_file(tmp_path: Path, more: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\naccelerator = "h100-sxm5-80gb"\ngpus_per_node = 8\n{more}\n')
    return str(path)


def test_a_cluster_that_says_all_assumes_nothing(tmp_path: Path) -> None:
    stated = "gpu_hours_per_failure = 29500\nrestart_minutes = 12\nstorage_gb_per_second = 40"
    found = reliability_of(resolve_cluster("64", cluster=cluster_file(tmp_path, stated)))
    assert found is not None
    assert found.gpu_seconds_per_failure == 29_500 * HOUR
    assert found.restart_seconds == 720.0
    assert found.storage_bytes_per_second == 40e9
    assert found.assumed == ()


def test_what_a_cluster_marks_as_assumed_is_told(tmp_path: Path) -> None:
    stated = (
        "gpu_hours_per_failure = 29500\nrestart_minutes = 12\nstorage_gb_per_second = 40\n"
        '[sources]\ngpu_hours_per_failure = "assumed: a guess"'
    )
    cluster = resolve_cluster("64", cluster=cluster_file(tmp_path, stated))
    found = reliability_of(cluster)
    assert found is not None and found.assumed == ("the failure rate of mine is marked as assumed in its file",)
    assert "failure rate" in cluster.notes[-1]


def test_nothing_is_said_of_machines_without_accelerators() -> None:
    assert reliability_of(resolve_cluster("2", cluster="local-cpu")) is None


@pytest.mark.parametrize("line", ["gpu_hours_per_failure = -1", "restart_minutes = -5", "restart_minutes = nan"])
def test_figures_that_cannot_be_are_refused(tmp_path: Path, line: str) -> None:
    from toolkit.errors import ToolkitError

    with pytest.raises(ToolkitError, match=line.split()[0]):
        resolve_cluster("8", cluster=cluster_file(tmp_path, line))
