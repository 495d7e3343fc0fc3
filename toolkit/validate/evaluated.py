"""Rows as jobs, and jobs scored under a calibration: read once, scored as often as a fit needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from toolkit.calibration import Calibration
from toolkit.validate.job import Job, Lookups, Skip, job_of, skip
from toolkit.validate.rows import Row
from toolkit.validate.score import Score, measured_bytes, measured_seconds, score

NOTHING = "missing: step time, tokens/s, peak memory (MFU and TFLOP/s are counted in too many ways)"


class Evaluated(NamedTuple):
    """Every row of a file: scored, or skipped with the reason."""

    scores: list[Score]
    skipped: list[Skip]


def jobs_of(rows: Iterable[Row], lookups: Lookups) -> list[Job | Skip]:
    """One job, or the reason why there is none, for each row."""
    return [job_of(row, lookups) if is_measured(row) else skip(row, _nothing(row), lookups) for row in rows]


def _nothing(row: Row) -> str:
    return "; ".join(row.faults.values()) or NOTHING


def evaluated(
    jobs: Sequence[Job | Skip],
    lookups: Lookups,
    calibration: Calibration,
    done: Callable[[int, int], None] | None = None,
) -> Evaluated:
    """Score every job under a calibration; what cannot be compared joins the skipped rows.

    ``done`` hears how many of how many jobs are behind.
    """
    scores: list[Score] = []
    skipped: list[Skip] = []
    for index, job in enumerate(jobs):
        if done is not None:
            done(index, len(jobs))
        found = job if isinstance(job, Skip) else _scored(job, lookups, calibration)
        if isinstance(found, Score):
            scores.append(found)
        else:
            skipped.append(found)
    return Evaluated(scores, skipped)


def is_measured(row: Row) -> bool:
    """Whether the row says anything that a prediction can be compared with."""
    return measured_seconds(row, 1) is not None or measured_bytes(row) is not None or row.text("outcome") == "OOM"


def _scored(job: Job, lookups: Lookups, calibration: Calibration) -> Score | Skip:
    found = score(job, calibration)
    if isinstance(found, str):
        return skip(job.row, found, lookups)
    if found.measured_seconds is None and found.measured_bytes is None and not found.outcome:
        return skip(job.row, "; ".join(job.unscored.values()) or _open(job), lookups)
    return found


def _open(job: Job) -> str:
    guessed = "; ".join(job.assumed) or "the memory of the GPU"
    return f"missing: what judges a run that went out of memory (assumed: {guessed})"
