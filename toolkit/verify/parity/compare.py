"""Two runs beside each other: every loss, gradient norm, gradient and weight of every step, each with its bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from toolkit.plan import Plan
from toolkit.verify.parity.bounds import Tolerances, UpdateBound
from toolkit.verify.parity.traces import Arrays, Run

CLIP_GUARD = 1.0e-6  # torch, DeepSpeed and megatron-core all clip by limit/(norm + 1e-6)
# in the order in which a step goes wrong
QUANTITIES = ("initial_weights", "loss", "gradients", "gradient_norm", "logged_loss", "weights")


@dataclass(frozen=True)
class Row:
    """One result: the largest difference of it, and the bound at that place.

    Of a gradient also ``factor``, by which the reference must be multiplied to come nearest (least squares), and
    ``residual``, what then remains, relative to the size of the reference.
    """

    quantity: str
    step: int
    name: str
    error: float
    tolerance: float
    factor: float = 1.0
    residual: float = 0.0

    @property
    def ratio(self) -> float:
        """Error over tolerance; above 1 it is no rounding."""
        if not np.isfinite(self.error):
            return float("inf")
        return self.error / self.tolerance if self.tolerance > 0.0 else (float("inf") if self.error > 0.0 else 0.0)

    @property
    def fails(self) -> bool:
        """Beyond what rounding explains."""
        return self.ratio > 1.0


@dataclass
class Comparison:
    """All rows of a pair, and what only one of the runs has."""

    steps: int
    rows: list[Row] = field(default_factory=list)
    only_in_one: tuple[str, ...] = ()

    def failing(self) -> list[Row]:
        """Rows beyond their bound, the earliest first, and of a step in the order in which things happen in it."""
        bad = [row for row in self.rows if row.fails]
        return sorted(bad, key=lambda row: (row.step, QUANTITIES.index(row.quantity), -row.ratio))

    def worst(self, quantity: str) -> Row | None:
        """The row nearest to its bound, or farthest beyond it."""
        rows = [row for row in self.rows if row.quantity == quantity]
        return max(rows, key=lambda row: row.ratio, default=None)


def compare(plan: Plan, one: Run, other: Run) -> Comparison:
    """``one`` is the reference; ``plan`` has their contract. Steps that both have taken."""
    begin = max(one.first, other.first)
    start, theirs = one.arrays("w", begin), other.arrays("w", begin)
    names = [name for name in start if name in theirs]
    steps = min(one.steps, other.steps)
    found = Comparison(steps - begin, only_in_one=tuple(sorted(set(start) ^ set(theirs))))
    found.rows += [Row("initial_weights", begin, name, _largest(start[name], theirs[name]), 0.0) for name in names]
    numbers = 2 * sum(array.size for array in start.values()) * steps + 3 * steps
    allowed = Tolerances(plan.model, plan.contract, numbers, max((array.size for array in start.values()), default=1))
    updates = {name: UpdateBound(plan.contract, begin) for name in names}
    for step in range(begin + 1, steps + 1):
        before = one.arrays("w", step - 1), other.arrays("w", step - 1)
        drift = max((_relative(before[0][name], before[1][name]) for name in names), default=0.0)
        _scalars(found, allowed, one, other, step, drift)
        gradients = one.arrays("g", step), other.arrays("g", step)
        _gradients(found, allowed, *gradients, step, drift)
        after = one.arrays("w", step), other.arrays("w", step)
        rate = one.record(step).learning_rate
        clips = [_clip(plan, run, step) for run in (one, other)]
        for name in names:
            if name not in gradients[0] or name not in gradients[1]:
                continue
            apart = np.abs(before[0][name].astype(np.float64) - before[1][name])
            bound = updates[name].step(
                gradients[0][name] * clips[0], gradients[1][name] * clips[1], apart, after[0][name], rate
            )
            found.rows.append(_weights(step, name, after[0][name], after[1][name], bound))
    return found


def _scalars(found: Comparison, allowed: Tolerances, one: Run, other: Run, step: int, drift: float) -> None:
    first, second = (token_weighted(run.micro_batches(step)) for run in (one, other))
    if first is not None and second is not None:
        found.rows.append(_scalar("loss", step, first, second, allowed.loss(first, drift)))
    mine, theirs = one.record(step), other.record(step)
    first, second = (math.nan if each.loss is None else each.loss for each in (mine, theirs))
    found.rows.append(_scalar("logged_loss", step, first, second, allowed.loss(first, drift)))
    if mine.gradient_norm is not None and theirs.gradient_norm is not None:
        norm = mine.gradient_norm
        found.rows.append(_scalar("gradient_norm", step, norm, theirs.gradient_norm, allowed.norm(norm, drift)))


def _scalar(quantity: str, step: int, one: float, other: float, tolerance: float) -> Row:
    return Row(quantity, step, "", abs(one - other), tolerance, factor=other / one if one else 1.0)


def _gradients(found: Comparison, allowed: Tolerances, one: Arrays, other: Arrays, step: int, drift: float) -> None:
    for name in one:
        if name not in other or one[name].shape != other[name].shape:
            continue
        mine, theirs = one[name].astype(np.float64), other[name].astype(np.float64)
        size = float(np.sum(mine * mine))
        factor = float(np.sum(mine * theirs)) / size if size else 1.0
        residual = float(np.sqrt(np.sum((theirs - factor * mine) ** 2) / size)) if size else 0.0
        tolerance = allowed.gradient(float(np.abs(mine).max(initial=0.0)), drift)
        found.rows.append(Row("gradients", step, name, _largest(mine, theirs), tolerance, factor, residual))


def _weights(step: int, name: str, one: np.ndarray, other: np.ndarray, bound: np.ndarray) -> Row:
    error = np.abs(one.astype(np.float64) - other)
    place = int(np.argmax(np.where(np.isfinite(error), error / np.maximum(bound, 1e-300), np.inf)))
    return Row("weights", step, name, float(error.flat[place]), float(bound.flat[place]))


def _clip(plan: Plan, run: Run, step: int) -> float:
    """What clipping multiplied the gradients by; DeepSpeed's ZeRO-0 in fp32 clips and does not tell the norm."""
    limit, norm = plan.contract.gradient_clipping, run.record(step).gradient_norm
    if norm is None:
        norm = math.sqrt(sum(float(np.sum(each.astype(np.float64) ** 2)) for each in run.arrays("g", step).values()))
    return min(1.0, limit / (norm + CLIP_GUARD)) if limit else 1.0


def _largest(one: np.ndarray, other: np.ndarray) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float(np.abs(one.astype(np.float64) - other).max(initial=0.0))


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    size = float(np.linalg.norm(one.astype(np.float64)))
    return float(np.linalg.norm(one.astype(np.float64) - other)) / size if size else 0.0


def token_weighted(micro_batches: list[tuple[float, int]]) -> float | None:
    """Mean loss per token of several micro-batches, from the sum of losses and the number of tokens of each."""
    tokens = sum(count for _, count in micro_batches)
    return sum(total for total, _ in micro_batches) / tokens if tokens else None


def mean_of_means(micro_batches: list[tuple[float, int]]) -> float | None:
    """Mean of the micro-batches' means: another number as soon as they differ in tokens. Empty ones are left out."""
    means = [total / count for total, count in micro_batches if count]
    return sum(means) / len(means) if means else None
