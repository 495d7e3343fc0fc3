"""Do the error bars hold? Every scored run beside its interval, made without its source, and without itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolkit.estimate.parameters import count_parameters
from toolkit.intervals.bars import distances, interval_of, likeness
from toolkit.intervals.likeness import of_memory, point
from toolkit.residuals import Point, Residuals, ResidualTable
from toolkit.validate.score import Bar, Score


def point_of(score: Score) -> Point:
    """Where the job of a scored run lies."""
    job = score.job
    counts = count_parameters(job.model)
    return point((counts.total, counts.active), job.model, job.cluster, job.workload, job.strategy)


def with_bars(scores: Sequence[Score], table: ResidualTable) -> list[Score]:
    """The scores with their bars; ``table`` has its runs ordered."""
    number = {name: index for index, name in enumerate(table.sources)}
    found = []
    for score in scores:
        source, at = number.get(score.job.row.text("source")), point_of(score)
        time = _bar(score, at, source, table, table.step_time, score.predicted_seconds, score.measured_seconds)
        memory = _bar(
            score, of_memory(at), source, table, table.peak_memory, score.predicted_bytes, score.measured_bytes
        )
        found.append(replace(score, time_bar=time, memory_bar=memory))
    return found


def _bar(
    score: Score,
    at: Point,
    source: int | None,
    table: ResidualTable,
    residuals: Residuals,
    predicted: float,
    measured: float | None,
) -> Bar | None:
    if measured is None:
        return None
    far = distances(at, residuals.runs)
    others = likeness(far, residuals, source=source)
    rest = likeness(far, residuals, id=score.job.row.name)
    if others is None or rest is None:
        return None
    without_source = interval_of(predicted, others, residuals, table.sources)
    without_run = interval_of(predicted, rest, residuals, table.sources)
    return Bar(
        without_source,
        without_source.low <= measured <= without_source.high,
        without_run.low <= measured <= without_run.high,
    )
