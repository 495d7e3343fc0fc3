"""How a fit travels: errors under the stated values, the fitted ones, and those fitted without each source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toolkit.calibrate.fit import Fit, Problem, fit, log_memory, log_time
from toolkit.calibrate.robust import Column
from toolkit.calibration import Calibration
from toolkit.validate.job import Job
from toolkit.validate.statistics import percentile

WAYS = ("stated", "fitted", "left_out")
LEAST_RUNS = 3
SUBJECTS = {"step_time": ("time", log_time), "peak_memory": ("mem", log_memory)}


def fits(jobs: Sequence[Job], calibration: Calibration, told: Callable[[str], None]) -> dict[str, tuple[Problem, Fit]]:
    """Fit step time and peak memory, each on the runs that the file recommends for it, or on all if it names none.

    A subject with fewer than three runs is left out.
    """
    found = {}
    for subject, (word, residual) in SUBJECTS.items():
        recommended = [job for job in jobs if job.row.is_recommended_for(word)]
        problem = Problem(recommended or jobs, calibration, residual)
        if len(problem.jobs) >= LEAST_RUNS:
            told(f"{subject.replace('_', ' ')}:")
            found[subject] = problem, fit(problem, told)
    return found


def document(problem: Problem, found: Fit) -> dict[str, Any]:
    """The errors in all and by source, and every coefficient that runs move, as JSON."""
    sources = np.array(found.sources)
    return {
        "rows": len(problem.jobs),
        "all": _errors(found, slice(None)),
        "by_source": {source: _errors(found, sources == source) for source in sorted(set(found.sources))},
        "coefficients": {
            name: {
                "stated": row.value,
                "fitted": found.values[name],
                "standard_error": found.errors[name],
                "low": row.low,
                "high": row.high,
                "unit": row.unit,
                "rows": found.runs[name],
                "sources": list(found.sources_of[name]),
            }
            for name, row in problem.calibration.coefficients.items()
            if found.runs[name]
        },
    }


def _errors(found: Fit, rows: Any) -> dict[str, Any]:
    return {"rows": len(found.stated[rows])} | {way: _statistics(getattr(found, way)[rows]) for way in WAYS}


def _statistics(residuals: Column) -> dict[str, float]:
    signed = [float(error) for error in np.expm1(residuals)]
    absolute = [abs(error) for error in signed]
    return {
        "median_abs_relative_error": percentile(absolute, 0.5),
        "p90_abs_relative_error": percentile(absolute, 0.9),
        "bias": percentile(signed, 0.5),
    }
