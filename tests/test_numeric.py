"""A formula's helpers agree on scalars and columns."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import numeric

finite = st.floats(-1e12, 1e12)


@given(finite, finite)
def test_scalar_and_column_agree(a: float, b: float) -> None:
    column_a, column_b = numpy.array([a]), numpy.array([b])
    assert numeric.maximum(a, b) == numeric.maximum(column_a, column_b)[0]
    assert numeric.minimum(a, b) == numeric.minimum(column_a, column_b)[0]
    assert numeric.where(a > b, a, b) == numeric.where(column_a > column_b, column_a, column_b)[0]


@given(st.integers(0, 10**15), st.integers(1, 10**6))
def test_ceil_div_is_the_least_integer_not_below(n: int, d: int) -> None:
    q = numeric.ceil_div(n, d)
    assert (q - 1) * d < n <= q * d
    assert numeric.ceil_div(numpy.array([n]), numpy.array([d]))[0] == q


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_greatest_common_divisor_divides_both_and_agrees(a: int, b: int) -> None:
    found = numeric.gcd(a, b)
    assert a % found == b % found == 0 and numeric.gcd(a // found, b // found) == 1
    assert numeric.gcd(numpy.array([a]), numpy.array([b]))[0] == found


@given(st.floats(-10, 110))
def test_interpolation_agrees_with_numpy(x: float) -> None:
    xs, ys = (0.0, 1.0, 10.0, 100.0), (0.0, 0.5, 0.8, 0.9)
    assert numeric.interpolate(x, xs, ys) == pytest.approx(numpy.interp(x, xs, ys), rel=1e-15, abs=1e-15)


def test_scalars_need_no_numpy() -> None:
    import subprocess
    import sys

    code = (
        "from toolkit import numeric as n\n"
        + "import sys\n"
        + "n.where(True, 1, 2); n.maximum(1, 2); n.ceil_div(7, 2); n.interpolate(3.0, (0., 5.), (1., 2.)); n.log2(8)\n"
        + "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_each_calls_a_function_once_for_each_distinct_number(values: list[int]) -> None:
    called: list[int] = []

    def squared(value: int) -> float:
        called.append(value)
        return float(value * value)

    column = numeric.each(squared, numpy.array(values))
    assert list(column) == [float(value * value) for value in values] == [numeric.each(squared, v) for v in values]
    assert sorted(called[: len(set(values))]) == sorted(set(values))
