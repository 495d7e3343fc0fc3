"""The linear problem inside a fit: exact answers, bounds, the pull of the prior, and what an outlier may do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.calibrate.robust import SPREAD, Prior, loss, objective, step


def prior(stated: float = 0.5, low: float = 0.0, high: float = 1.0) -> Prior:
    return Prior(np.array([stated]), np.array([low]), np.array([high]))


def solved(residuals: list[float], slope: float, kind: Prior | None = None, most: float = 1.0) -> float:
    kind = kind or prior()
    count = len(residuals)
    return float(
        step(np.array(residuals), np.full((count, 1), slope), np.ones(count), kind.stated.copy(), kind, most)[0]
    )


def test_loss_is_cauchys() -> None:
    assert loss(np.array([0.0, SPREAD])) == pytest.approx([0.0, np.log(2.0)])


def test_many_runs_that_agree_win_over_the_prior() -> None:
    """Every run is predicted 0.2 too high, and the coefficient moves it by 1: 0.3 is what they all want."""
    assert solved([0.2] * 500, 1.0) == pytest.approx(0.3, abs=2e-3)


def test_without_runs_that_move_the_stated_value_stays() -> None:
    assert solved([0.2] * 500, 0.0) == 0.5


def test_few_runs_move_little() -> None:
    few, many = solved([0.02], 0.2), solved([0.02] * 50, 0.2)
    assert 0.5 > few > many > 0.4


def test_an_outlier_pulls_little() -> None:
    with_it, without = solved([0.0] * 20 + [3.0], 1.0), solved([0.0] * 20, 1.0)
    assert abs(with_it - without) < 0.005


def test_values_stay_in_their_range_and_within_reach() -> None:
    assert solved([5.0] * 50, 1.0) >= 0.0
    assert solved([0.4] * 500, 0.5) == 0.0  # it would want -0.3
    assert solved([0.4] * 500, 0.5, most=0.1) == pytest.approx(0.4)


@given(
    st.lists(st.floats(-1, 1), min_size=6, max_size=6),
    st.lists(st.floats(-2, 2), min_size=12, max_size=12),
    st.floats(0.05, 1.0),
)
def test_a_step_never_makes_the_linear_problem_worse(residuals: list[float], slopes: list[float], most: float) -> None:
    kind = Prior(np.array([0.5, 2.0]), np.array([0.0, 1.0]), np.array([1.0, 5.0]))
    r, jacobian, weights = np.array(residuals), np.array(slopes).reshape(6, 2), np.ones(6)
    new = step(r, jacobian, weights, kind.stated.copy(), kind, most)
    assert (kind.low <= new).all() and (new <= kind.high).all()
    before = objective(r, weights, kind.stated, kind)
    assert objective(r + jacobian @ (new - kind.stated), weights, new, kind) <= before + 1e-6
