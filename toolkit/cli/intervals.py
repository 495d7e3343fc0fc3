"""The 80 % intervals of a plan, from the residuals that go with the calibration."""

from __future__ import annotations

from toolkit.cluster import ClusterSpec
from toolkit.estimates import Estimate
from toolkit.interval import Interval
from toolkit.intervals.bars import interval
from toolkit.intervals.likeness import of_memory, point
from toolkit.model import ModelSpec
from toolkit.registry.residuals import load_residuals
from toolkit.strategy import Strategy
from toolkit.workload import Workload


def intervals_of(
    calibration: str,
    parameters: tuple[int, int],
    job: tuple[ModelSpec, ClusterSpec, Workload, Strategy],
    estimate: Estimate,
) -> tuple[Interval | None, Interval | None]:
    """Seconds of a step and bytes of the fullest GPU, each between what runs like the job make likely."""
    table = load_residuals(calibration)
    at = point(parameters, *job)
    return (
        interval(estimate.step.seconds, at, table.step_time, table.sources),
        interval(estimate.memory.total_bytes, of_memory(at), table.peak_memory, table.sources),
    )
