"""Equations E1 to E6 on small tables with known answers, and what every interval must satisfy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.calibrate.residuals import OF_MEMORY, OF_TIME
from toolkit.intervals.bars import (
    FLOOR,
    MOST,
    around,
    distances,
    half_width,
    interval,
    kernel,
    likeness,
    reach,
    weighted_quantile,
)
from toolkit.intervals.likeness import distance
from toolkit.residuals import Residuals, Run

PLACES = st.lists(st.floats(-5, 5), min_size=2, max_size=2).map(tuple)
RUNS = st.lists(
    st.builds(Run, st.uuids().map(str), st.integers(0, 4), st.floats(-2, 2), PLACES), min_size=1, max_size=20
)


def table(*runs: Run) -> Residuals:
    return Residuals(scale=1.0, kernel=0.6, growth=1.0, runs=runs).ordered()


def test_distance_is_euclids() -> None:
    assert distance((0.0, 3.0), (4.0, 0.0)) == 5.0


def test_kernel_by_hand() -> None:
    assert kernel(0.0, 0.6) == 1.0
    assert kernel(0.6, 0.6) == pytest.approx(math.exp(-0.5))
    assert reach(0.6, 1.0) == pytest.approx(1.1)


def test_weighted_quantile_by_hand() -> None:
    ordered = [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.4, 1.0), (0.9, 1.0)]
    assert weighted_quantile(ordered, 0.8) == 0.4
    assert weighted_quantile(ordered, 0.81) == 0.9
    assert weighted_quantile([(0.1, 9.0), (0.9, 1.0)], 0.8) == 0.1


def test_half_width_by_hand() -> None:
    assert half_width(0.5, 0.2, 1.0, 2.0) == pytest.approx(0.5 * 0.2 * 5.0 + FLOOR)
    assert around(10.0, math.log(2.0)) == pytest.approx((5.0, 20.0))


def test_an_interval_of_one_run_is_its_residual() -> None:
    run = Run("a", 0, -0.3, (0.0, 0.0))
    found = interval(10.0, (0.0, 0.0), table(run), ("paper",))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(around(10.0, 0.3 + FLOOR))
    assert [(each.id, each.source, each.distance) for each in found.based_on] == [("a", "paper", 0.0)]


def test_a_source_counts_once_however_many_runs_it_has() -> None:
    many = [Run(f"m{i}", 0, 0.1, (0.0, 0.0)) for i in range(50)]
    one = Run("o", 1, 0.5, (0.0, 0.0))
    found = likeness([0.0] * 51, table(*many, one))
    assert found is not None
    weights = {size: sum(w for s, w in found.residuals if s == size) for size in (0.1, 0.5)}
    assert weights[0.1] == pytest.approx(weights[0.5])
    assert weighted_quantile(found.residuals, 0.8) == 0.5


def test_near_runs_count_more_and_very_far_ones_not_at_all() -> None:
    near, far = Run("n", 0, 0.1, (0.0, 0.0)), Run("f", 1, 2.0, (9.0, 0.0))
    found = interval(1.0, (0.0, 0.0), table(near, far), ("near", "far"))
    assert found is not None and found.high == pytest.approx(math.exp(0.1 + FLOOR))


def test_what_is_left_out_is_left_out() -> None:
    a, b, c = Run("a", 0, 0.1, (0.0, 0.0)), Run("b", 1, 0.4, (0.1, 0.0)), Run("c", 1, 0.2, (0.2, 0.0))
    runs = table(a, b, c)
    far = distances((0.0, 0.0), runs.runs)
    without_source = likeness(far, runs, source=1)
    without_run = likeness(far, runs, id="a")
    assert without_source is not None and [size for size, _ in without_source.residuals] == [0.1]
    assert without_run is not None and [size for size, _ in without_run.residuals] == [0.2, 0.4]
    assert likeness(far[:1], table(a), source=0) is None
    assert interval(1.0, (0.0, 0.0), table(), ()) is None


@given(RUNS, PLACES, st.floats(1e-6, 1e12))
def test_every_interval_holds_its_prediction(runs: list[Run], job: tuple[float, ...], predicted: float) -> None:
    found = interval(predicted, job, table(*runs), tuple("abcde"))
    assert found is not None
    assert 0 < found.low < predicted < found.high
    assert found.low * found.high == pytest.approx(predicted**2)
    assert found.distance == pytest.approx(min(distance(job, run.point) for run in runs), abs=0.006)


@given(RUNS, st.floats(1.0, 50.0), st.floats(1.1, 3.0))
def test_farther_from_everything_is_wider(runs: list[Run], away: float, times: float) -> None:
    """On a ray that leaves all runs behind, where every source weighs about the same."""
    level = [Run(run.id, run.source, 1e-4, run.point) for run in runs]
    near = interval(1.0, (6.0 + away, 0.0), table(*level), tuple("abcde"))
    far = interval(1.0, (6.0 + away * times, 0.0), table(*level), tuple("abcde"))
    assert near is not None and far is not None and far.high > near.high


@given(st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.floats(0.01, 1.0))
def test_half_width_grows_with_distance(near: float, more: float, quantile: float) -> None:
    assert half_width(1.0, quantile, 1.0, near + more) >= half_width(1.0, quantile, 1.0, near)


def test_nothing_is_wider_than_ten_times() -> None:
    found = interval(1.0, (1e9, 0.0), table(Run("a", 0, 1.0, (0.0, 0.0))), ("a",))
    assert found is not None and (found.low, found.high) == pytest.approx((0.1, 10.0))


def test_settings_are_those_of_the_document() -> None:
    assert (OF_TIME.kernel, OF_MEMORY.kernel, FLOOR) == (0.3, 1.0, 0.02)
    assert (OF_TIME.growth, OF_MEMORY.growth, MOST) == (1.0, 0.1, math.log(10.0))
