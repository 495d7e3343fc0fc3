"""Medians, percentiles and rank correlation, exactly as the summary defines them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest order statistics: position ``share * (n - 1)``; raises ValueError for none."""
    if not values:
        raise ValueError("a percentile needs a value")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for index in order[start:stop]:
            found[index] = (start + stop + 1) / 2.0
        start = stop
    return found


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Pearson's correlation of the ranks; None where the right side has one value only, 0 where only the left has.

    ``right`` is what was measured: runs that took equally long have no order to get right. A prediction that tells
    none of them apart has found nothing: 0.
    """
    if len(set(right)) < 2:
        return None
    if len(set(left)) < 2:
        return 0.0
    x, y = ranks(left), ranks(right)
    mean = (len(x) + 1) / 2.0
    product = sum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True))
    return product / math.sqrt(sum((a - mean) ** 2 for a in x) * sum((b - mean) ** 2 for b in y))
