"""The residual table of a set of scored runs, with the scales at which its intervals hold 80 %."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from toolkit.interval import LEVEL
from toolkit.intervals.bars import FLOOR, distances, likeness, width_of
from toolkit.residuals import FEATURES, Residuals, ResidualTable, Run
from toolkit.validate.bars import point_of
from toolkit.validate.score import Score
from toolkit.validate.statistics import percentile

DIGITS = 4
# `growth` of E5: the least interval score with whole sources left out among 0.25, 0.5, 1 and 2
GROWTH_OF_TIME, GROWTH_OF_MEMORY = 1.0, 0.25


def teaches_time(score: Score) -> bool:
    """Whether the step time of a run says something about other runs.

    Not where its file recommends it for its memory alone: tests of tiny models, whose time is that of starting
    kernels and of switches that no training run sets.
    """
    row = score.job.row
    return not row.text("scoreset") or row.is_recommended_for("time")


def residual_table(scores: Iterable[Score], calibration: str) -> ResidualTable:
    """Residuals of all scored runs; the scales are those of :func:`conformal_scale`."""
    scores = list(scores)
    sources = sorted({score.job.row.text("source") for score in scores})
    number = {name: index for index, name in enumerate(sources)}
    time, memory, judged = [], [], []
    for score in scores:
        source, id, at = number[score.job.row.text("source")], score.job.row.name, point_of(score)
        if score.measured_seconds is not None:
            run = Run(id, source, _residual(score.measured_seconds, score.predicted_seconds), at)
            judged.append(run)
            time += [run] if teaches_time(score) else []
        if score.measured_bytes is not None:
            memory.append(Run(id, source, _residual(score.measured_bytes, score.predicted_bytes), at))
    return ResidualTable(
        calibration=calibration,
        features=FEATURES,
        sources=tuple(sources),
        step_time=_calibrated(judged, time, GROWTH_OF_TIME),
        peak_memory=_calibrated(memory, memory, GROWTH_OF_MEMORY),
    )


def _calibrated(judged: Sequence[Run], runs: Sequence[Run], growth: float) -> Residuals:
    plain = Residuals(scale=1.0, growth=growth, runs=tuple(runs))
    return Residuals(scale=conformal_scale(judged, plain), growth=growth, runs=tuple(runs))


def conformal_scale(judged: Sequence[Run], residuals: Residuals) -> float:
    """The least scale of E5 at which intervals hold 80 % of the judged runs, each without the runs of its source.

    1 where there are no two sources to tell it.
    """
    runs = residuals.ordered().runs
    needed = []
    for run in judged:
        found = likeness(distances(run.point, runs), runs, source=run.source)
        if found is not None:
            width = max(width_of(found, 1.0, residuals.growth) - FLOOR, 1e-9)
            needed.append(max(abs(run.residual) - FLOOR, 0.0) / width)
    return float(f"{percentile(needed, LEVEL):.{DIGITS}g}") if needed else 1.0


def _residual(measured: float, predicted: float) -> float:
    return round(math.log(measured / predicted), DIGITS)
