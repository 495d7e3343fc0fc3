"""Robust bounded least squares with a prior: the linear problem inside a fit of coefficients.

Residuals r are logarithms, ln(predicted / measured). The loss is Cauchy's, ``ln(1 + (r/s)**2)``: far from its
prediction a run pulls less and less, as one does whose description misses what made it slow. A prior holds each
coefficient near its stated value, with a quarter of its plausible range as one standard deviation: where few runs
speak, the stated value stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.equation import equation

Column = Any  # a numpy array of floats
SPREAD = 0.08  # s, of the logarithm: half of the runs lie nearer to their prediction
PASSES = 40


@dataclass(frozen=True)
class Prior:
    """Stated values, plausible ranges, and what one standard deviation is, one for each coefficient."""

    stated: Column
    low: Column
    high: Column

    @property
    def deviation(self) -> Column:
        """A quarter of the range: the range holds two standard deviations to either side of its middle."""
        return np.maximum((self.high - self.low) / 4.0, 1e-300)


@equation("E7", "ln(1 + (r/s)**2)")
def loss(residuals: Column) -> Column:
    """Loss of each residual.

    Source: Cauchy's loss; Holland and Welsch 1977.
    """
    return np.log1p((residuals / SPREAD) ** 2)


@equation("E8", "sum(weight*loss) + sum(((x - x_0)/tau)**2)")
def objective(residuals: Column, weights: Column, values: Column, prior: Prior) -> float:
    """What a fit makes small: weighted losses of the runs, and squares of the distances from stated values.

    Source: maximum of the posterior under Cauchy's errors and a normal prior of deviation ``tau``, a quarter of the
    plausible range.
    """
    away = (values - prior.stated) / prior.deviation
    return float(np.sum(weights * loss(residuals)) + np.sum(away**2))


def step(residuals: Column, jacobian: Column, weights: Column, values: Column, prior: Prior, most: float) -> Column:
    """New values that make the linearised objective least, inside the ranges, ``most`` of a range from the old ones.

    Cauchy's loss by reweighting, the ranges by cyclic coordinate descent: each coordinate has its exact minimum
    between its bounds, which converges for a convex quadratic.
    """
    span = most * (prior.high - prior.low)
    low, high = np.maximum(prior.low, values - span), np.minimum(prior.high, values + span)
    new = values.copy()
    for _ in range(PASSES):
        now = residuals + jacobian @ (new - values)
        factors = weights / (SPREAD**2 + now**2)
        curvature = (jacobian * factors[:, None]).T @ jacobian + np.diag(prior.deviation**-2.0)
        slope = jacobian.T @ (factors * now) + (new - prior.stated) / prior.deviation**2
        before = new.copy()
        for _ in range(PASSES):
            largest = 0.0
            for j in range(len(new)):
                gradient = slope[j] + curvature[j] @ (new - before)
                moved = min(max(new[j] - gradient / curvature[j, j], low[j]), high[j])
                largest = max(largest, abs(moved - new[j]) / prior.deviation[j])
                new[j] = moved
            if largest < 1e-6:
                break
        if np.max(np.abs(new - before) / prior.deviation) < 1e-5:
            break
    return new
