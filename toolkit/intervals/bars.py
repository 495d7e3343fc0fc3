"""Equations E2 to E6: an 80 % interval around a prediction from the residuals of runs that are like the job.

A residual is ln(measured / predicted) of a run. Runs of one source share machine, software and the habits of who
measured, so a source counts once, by its runs most like the job (E2, E3). The weighted 80 % quantile of the
residuals' sizes (E4) is widened with the distance to the nearest run (E5), by a scale at which the intervals of
sources that were left out hold 80 % of their runs: a conformal calibration across sources. Intervals are symmetric
in the logarithm: leaving sources out, a bias of similar runs was not found to travel to other sources.
Left out: the distribution of anything but the job's own place (two jobs of one source err alike).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from inspect import unwrap
from typing import NamedTuple

from toolkit.equation import equation
from toolkit.interval import LEVEL, Comparable, Interval
from toolkit.intervals.likeness import distance
from toolkit.residuals import Point, Residuals, Run

FLOOR = 0.02  # of the logarithm: figures are printed with two or three digits
MOST = math.log(10.0)  # nothing is known of the job
FAR = 3.0  # widths of the kernel beyond which a weight (below 0.011) is taken as none
SHOWN = 3  # sources named beside an interval


class Likeness(NamedTuple):
    """Weighted residuals for one job, the distance of the nearest run, and each source's nearest."""

    residuals: tuple[tuple[float, float], ...]  # |residual|, weight; ordered by the first
    nearest: float
    sources: list[tuple[float, Run]]  # nearest first


@equation("E2", "exp(-(x/h)**2/2)")
def kernel(x: float, width: float) -> float:
    """Weight of what lies ``x`` away.

    Source: Gaussian kernel; Nadaraya 1964.
    """
    return math.exp(-0.5 * (x / width) ** 2)


@equation("E3", "h + d_0/2")
def reach(width: float, nearest: float) -> float:
    """Width of the kernel over sources: where data are sparse (the nearest run is ``d_0`` away) it reaches farther.

    Source: variable kernels; Loftsgaarden and Quesenberry 1965.
    """
    return width + 0.5 * nearest


@equation("E4", "least size below which a share of all weight lies")
def weighted_quantile(ordered: Sequence[tuple[float, float]], share: float) -> float:
    """Size of the residuals that ``share`` of the weight does not exceed; ``ordered`` by size.

    Source: definition of a quantile.
    """
    wanted = share * math.fsum(weight for _, weight in ordered)
    for size, weight in ordered:
        wanted -= weight
        if wanted <= 0.0:
            return size
    return ordered[-1][0]


@equation("E5", "min(scale*q*(1 + growth*d_0**2) + floor, most)")
def half_width(scale: float, quantile: float, growth: float, nearest: float) -> float:
    """Half of the interval's width, in the logarithm: wider with the square of the distance to anything measured.

    Source: conformal prediction (Vovk et al. 2005) with whole sources left out; the square had the least interval
    score among none, linear, exponential and square.
    """
    return min(scale * quantile * (1.0 + growth * nearest * nearest) + FLOOR, MOST)


@equation("E6", "predicted*exp(-w) to predicted*exp(w)")
def around(predicted: float, width: float) -> tuple[float, float]:
    """Both ends of the interval.

    Source: definition of the residual as a logarithm.
    """
    return predicted * math.exp(-width), predicted * math.exp(width)


_distance, _kernel = unwrap(distance), unwrap(kernel)  # thousands for one job: not for a trace


def distances(job: Point, runs: Sequence[Run]) -> list[float]:
    """How far each run is from a job (E1)."""
    return [_distance(job, run.point) for run in runs]


def likeness(
    far: Sequence[float], residuals: Residuals, source: int | None = None, id: str | None = None
) -> Likeness | None:
    """Weigh runs at the distances ``far`` from a job; ``source`` and ``id`` are left out. None where none is left.

    A source weighs by its nearest run (E2 with the width of E3), shared among its runs by their distance beyond that
    one (E2). The runs are ordered by the size of their residual (``Residuals.ordered``).
    """
    runs, own = residuals.runs, residuals.kernel
    nearest: dict[int, tuple[float, Run]] = {}
    least: dict[int, float] = {}
    for d, run in zip(far, runs, strict=True):
        of = run.source
        if d < least.get(of, math.inf) and of != source and run.id != id:
            least[of], nearest[of] = d, (d, run)
    if not nearest:
        return None
    sources = sorted(nearest.values(), key=lambda found: found[0])
    width = reach(own, sources[0][0])
    shares = {run.source: _kernel(d, width) for d, run in sources if d <= FAR * width}
    ends = {of: least[of] + FAR * own for of in shares}
    kept = [
        (abs(run.residual), _kernel(d - least[run.source], own), run.source)
        for d, run in zip(far, runs, strict=True)
        if d <= ends.get(run.source, -1.0) and run.id != id
    ]
    totals = dict.fromkeys(shares, 0.0)
    for _, weight, of in kept:
        totals[of] += weight
    factors = {of: share / totals[of] for of, share in shares.items()}
    return Likeness(tuple((size, weight * factors[of]) for size, weight, of in kept), sources[0][0], sources)


def width_of(found: Likeness, residuals: Residuals) -> float:
    """Half width of E5 for the runs that are like a job."""
    quantile = weighted_quantile(found.residuals, LEVEL)
    return half_width(residuals.scale, quantile, residuals.growth, found.nearest)


def interval_of(predicted: float, found: Likeness, residuals: Residuals, sources: Sequence[str]) -> Interval:
    """The 80 % interval around a prediction from the runs that are like the job."""
    low, high = around(predicted, width_of(found, residuals))
    return Interval(
        low=low,
        high=high,
        distance=round(found.nearest, 2),
        based_on=tuple(
            Comparable(id=run.id, source=sources[run.source], distance=round(d, 2)) for d, run in found.sources[:SHOWN]
        ),
    )


def interval(predicted: float, job: Point, residuals: Residuals, sources: Sequence[str]) -> Interval | None:
    """The 80 % interval around the prediction of a job; None where there are no runs to compare with."""
    found = likeness(distances(job, residuals.runs), residuals)
    return None if found is None else interval_of(predicted, found, residuals, sources)
