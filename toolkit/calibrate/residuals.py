"""The residual table of a set of scored runs, with the scales at which its intervals hold 80 %."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from toolkit.intervals.bars import FLOOR, distances, likeness, width_of
from toolkit.intervals.likeness import of_memory
from toolkit.residuals import FEATURES, Residuals, ResidualTable, Run
from toolkit.validate.bars import point_of
from toolkit.validate.score import Score
from toolkit.validate.statistics import percentile

DIGITS = 4
# share of the judged runs that intervals are made to hold: over 80 %, for sources that nobody saw while the model was
# made. Tables without a third of the sources hold 81 % of that third's times, but only 70 % of its peaks.
HELD_OF_TIME, HELD_OF_MEMORY = 0.81, 0.82
# `kernel` of E2 and `growth` of E5: of 0.3 to 1, and of 0.1 to 2, those with narrow intervals that hold about as much
# of runs whose source is known as of runs whose source is not
OF_TIME = Residuals(scale=1.0, kernel=0.3, growth=1.0, runs=())
OF_MEMORY = Residuals(scale=1.0, kernel=1.0, growth=0.1, runs=())


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
            residual = _residual(score.measured_bytes, score.predicted_bytes)
            memory.append(Run(id, source, residual, of_memory(at)))
    return ResidualTable(
        calibration=calibration,
        features=FEATURES,
        sources=tuple(sources),
        step_time=_calibrated(judged, msgspec.structs.replace(OF_TIME, runs=tuple(time)), HELD_OF_TIME),
        peak_memory=_calibrated(memory, msgspec.structs.replace(OF_MEMORY, runs=tuple(memory)), HELD_OF_MEMORY),
    )


def _calibrated(judged: Sequence[Run], plain: Residuals, held: float) -> Residuals:
    return msgspec.structs.replace(plain, scale=conformal_scale(judged, plain, held))


def conformal_scale(judged: Sequence[Run], residuals: Residuals, held: float) -> float:
    """The least scale of E5 at which intervals hold the share ``held`` of the judged runs.

    Each is judged without the runs of its source. 1 where there are no two sources to tell it.
    """
    plain = msgspec.structs.replace(residuals, scale=1.0).ordered()
    needed = []
    for run in judged:
        found = likeness(distances(run.point, plain.runs), plain, source=run.source)
        if found is not None:
            width = max(width_of(found, plain) - FLOOR, 1e-9)
            needed.append(max(abs(run.residual) - FLOOR, 0.0) / width)
    return float(f"{percentile(needed, held):.{DIGITS}g}") if needed else 1.0


def _residual(measured: float, predicted: float) -> float:
    return round(math.log(measured / predicted), DIGITS)
