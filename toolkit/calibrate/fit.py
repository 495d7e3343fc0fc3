"""Coefficients fitted on scored runs, and how the fit travels to sources that it has not seen.

Gauss-Newton on finite differences: one pass over the runs for each coefficient, which the planner's own functions
evaluate. Runs weigh by the square root of their source, ``1/sqrt(runs of the source)``: a source with a hundred runs
says more than one with four, but not twenty-five times more. A source is left out with the derivatives of the whole
fit, and its runs are then evaluated exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.calibrate.robust import Column, Prior, objective, step
from toolkit.calibration import Calibration
from toolkit.validate.job import Job
from toolkit.validate.score import Score, score

Subject = Callable[[Score], float | None]  # ln(predicted / measured), or None where nothing was measured
DIFFERENCE = 0.05  # of a range: over kinks of the model the mean slope is wanted
MOST_STEP = 0.25  # of a range in one iteration
ITERATIONS = 4
WIDE = 8.0  # a range whose ends differ by more than this factor counts in the logarithm
MOVES = 1e-4  # of the logarithm, over the whole range of a coefficient: below, a run says nothing about it


def log_time(found: Score) -> float | None:
    """Residual of the step time."""
    return None if found.measured_seconds is None else math.log(found.predicted_seconds / found.measured_seconds)


def log_memory(found: Score) -> float | None:
    """Residual of the peak memory."""
    return None if found.measured_bytes is None else math.log(found.predicted_bytes / found.measured_bytes)


@dataclass(frozen=True)
class Fit:
    """Fitted values by name, their errors, and the residuals of every run in and out of the sample."""

    values: dict[str, float]
    errors: dict[str, float]  # standard error, over the fits that leave out one source each
    runs: dict[str, int]  # that a coefficient moves
    sources_of: dict[str, tuple[str, ...]]
    sources: tuple[str, ...]  # of each run
    stated: Column  # residuals under the stated values
    fitted: Column  # under the fitted ones
    left_out: Column  # of each run under the values that were fitted without its source


class Problem:
    """Runs and one quantity of them as a function of the coefficients.

    Inside a fit a coefficient is its value, or the value's logarithm where its plausible range is wide.
    """

    def __init__(self, jobs: Sequence[Job], calibration: Calibration, subject: Subject) -> None:
        self.calibration, self.subject = calibration, subject
        self.jobs = [job for job in jobs if self._residual(job, calibration) is not None]
        self.sources = tuple(job.row.text("source") for job in self.jobs)
        counts = {name: self.sources.count(name) for name in set(self.sources)}
        self.weights = np.array([counts[name] ** -0.5 for name in self.sources])
        self.names = tuple(calibration.coefficients)
        rows = [calibration.coefficients[name] for name in self.names]
        self.wide = np.array([row.low > 0.0 and row.high > WIDE * row.low for row in rows])
        fields = [np.array([getattr(row, field) for row in rows], dtype=float) for field in ("value", "low", "high")]
        self.stated = fields[0]
        self.prior = Prior(*(np.log(each, where=self.wide, out=each.copy()) for each in fields))

    def residuals(self, values: Column, rows: Column | None = None) -> Column:
        """ln(predicted / measured) of all runs or of some."""
        calibration = self.calibration.with_values(self.named(values))
        jobs = self.jobs if rows is None else [self.jobs[int(row)] for row in rows]
        return np.array([self._residual(job, calibration) for job in jobs], dtype=float)

    def named(self, values: Column) -> dict[str, float]:
        """The coefficients by name, as a calibration holds them."""
        natural = np.exp(values, where=self.wide, out=values.copy())
        natural = np.where(values == self.prior.stated, self.stated, natural)  # to the last digit
        return dict(zip(self.names, map(float, natural), strict=True))

    def jacobian(self, values: Column, base: Column, known: Column | None = None) -> Column:
        """Derivatives of every residual; only where ``known`` is not 0, when it is given."""
        found = np.zeros((len(self.jobs), len(self.names)))
        for j in range(len(self.names)):
            rows = np.arange(len(self.jobs)) if known is None else np.flatnonzero(known[:, j])
            width = DIFFERENCE * (self.prior.high[j] - self.prior.low[j])
            if not len(rows) or width <= 0.0:
                continue
            if values[j] + width > self.prior.high[j]:
                width = -width
            other = values.copy()
            other[j] += width
            found[rows, j] = (self.residuals(other, rows) - base[rows]) / width
        return found

    def _residual(self, job: Job, calibration: Calibration) -> float | None:
        found = score(job, calibration)
        return None if isinstance(found, str) else self.subject(found)


def fit(problem: Problem, told: Callable[[str], None] = lambda _: None) -> Fit:
    """Fit all coefficients that the runs say something about; ``told`` hears of the progress."""
    values = problem.prior.stated.copy()
    stated = now = problem.residuals(values)
    least = objective(now, problem.weights, values, problem.prior)
    jacobian = None
    told(f"{len(problem.jobs)} runs, objective {least:.1f}")
    for iteration in range(ITERATIONS):
        jacobian = problem.jacobian(values, now, jacobian)
        most = MOST_STEP
        for _ in range(4):
            new = step(now, jacobian, problem.weights, values, problem.prior, most)
            then = problem.residuals(new)
            reached = objective(then, problem.weights, new, problem.prior)
            if reached < least:
                break
            most /= 4.0
        gain = least - reached
        told(f"iteration {iteration + 1}: objective {reached:.1f}")
        if gain <= 0.0:
            break
        values, now, least = new, then, reached
        if gain < 0.002 * least:
            break
    assert_free = jacobian if jacobian is not None else np.zeros((len(now), len(values)))
    return _with_folds(problem, values, stated, now, assert_free)


def _with_folds(problem: Problem, values: Column, stated: Column, now: Column, jacobian: Column) -> Fit:
    names, sources = problem.names, np.array(problem.sources)
    left_out, folds = now.copy(), []
    for source in sorted(set(problem.sources)):
        kept, rows = sources != source, np.flatnonzero(sources == source)
        without = step(now[kept], jacobian[kept], problem.weights[kept], values, problem.prior, MOST_STEP)
        left_out[rows] = problem.residuals(without, rows)
        folds.append(without)
    spread = np.array(folds)
    count = len(folds)
    errors = np.sqrt((count - 1) / count * np.sum((spread - spread.mean(0)) ** 2, 0)) if count > 1 else 0.0 * values
    reaches = np.abs(jacobian) * (problem.prior.high - problem.prior.low) > MOVES
    natural = problem.named(values)
    return Fit(
        values=natural,
        errors={
            name: float(error) * (natural[name] if problem.wide[j] else 1.0)
            for j, (name, error) in enumerate(zip(names, errors, strict=True))
        },
        runs={name: int(reaches[:, j].sum()) for j, name in enumerate(names)},
        sources_of={name: tuple(sorted(set(sources[reaches[:, j]]))) for j, name in enumerate(names)},
        sources=problem.sources,
        stated=stated,
        fitted=now,
        left_out=left_out,
    )
