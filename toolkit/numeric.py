"""All that a formula may call: the same text evaluates one strategy or a column of a million.

A *column* is a numpy array; a scalar is a Python number. numpy is imported only when a column
is met, so evaluating one plan costs no numpy import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SCALARS = (int, float, bool)

Number = Any  # int, float, or a numpy column of either


def is_column(*values: Number) -> bool:
    """True when any of the values is a numpy column."""
    return not all(isinstance(value, _SCALARS) for value in values)


def where(condition: Number, if_true: Number, if_false: Number) -> Number:
    """``if_true`` where the condition holds, else ``if_false``; both sides are always evaluated."""
    if is_column(condition, if_true, if_false):
        import numpy

        return numpy.where(condition, if_true, if_false)
    return if_true if condition else if_false


def holds_anywhere(condition: Number) -> bool:
    """Whether a condition holds, or holds in any row of a column."""
    return bool(condition.any()) if is_column(condition) else bool(condition)


def maximum(left: Number, right: Number) -> Number:
    """The larger of two values, element by element."""
    if is_column(left, right):
        import numpy

        return numpy.maximum(left, right)
    return left if left >= right else right


def minimum(left: Number, right: Number) -> Number:
    """The smaller of two values, element by element."""
    if is_column(left, right):
        import numpy

        return numpy.minimum(left, right)
    return left if left <= right else right


def ceil_div(numerator: Number, denominator: Number) -> Number:
    """Least integer not below ``numerator / denominator`` (exact for integers)."""
    return -(-numerator // denominator)


def gcd(left: Number, right: Number) -> Number:
    """Greatest common divisor of two whole numbers above 0."""
    if is_column(left, right):
        import numpy

        return numpy.gcd(left, right)
    import math

    return math.gcd(left, right)


def log2(value: Number) -> Number:
    """Logarithm to base 2."""
    if is_column(value):
        import numpy

        return numpy.log2(value)
    import math

    return math.log2(value)


def exp(value: Number) -> Number:
    """Exponential function."""
    if is_column(value):
        import numpy

        return numpy.exp(value)
    import math

    return math.exp(value)


def take(table: tuple[float, ...], index: Number) -> Number:
    """``table[index]``: a per-layer table read at one layer or at a column of layers."""
    if is_column(index):
        import numpy

        return numpy.asarray(table)[index]
    return table[index]


def each(function: Callable[[int], float], values: Number) -> Number:
    """``function`` of a whole number, or of each distinct one in a column of few different values."""
    if is_column(values):
        import numpy

        distinct, places = numpy.unique(values, return_inverse=True)
        return numpy.array([function(int(value)) for value in distinct])[places.reshape(numpy.shape(values))]
    return function(int(values))


def interpolate(x: Number, xs: tuple[float, ...], ys: tuple[float, ...]) -> Number:
    """Piecewise linear curve through (xs, ys), constant beyond its ends; xs must rise."""
    if is_column(x):
        import numpy

        return numpy.interp(x, xs, ys)
    if x <= xs[0]:
        return float(ys[0])
    for x0, y0, x1, y1 in zip(xs, ys, xs[1:], ys[1:], strict=False):
        if x <= x1:
            # the same arithmetic as numpy.interp, so that both modes agree to the last bit
            return (y1 - y0) / (x1 - x0) * (x - x0) + y0
    return float(ys[-1])
