"""Medians, percentiles and Spearman's coefficient against numpy and hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.validate.statistics import percentile, ranks, spearman

FLOATS = st.floats(-1e6, 1e6)


@given(st.lists(FLOATS, min_size=1, max_size=50), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.percentile(values, 100 * share)), abs=1e-6)


def test_a_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="needs a value"):
        percentile([], 0.5)


def test_ranks_share_ties() -> None:
    assert ranks([10.0, 30.0, 20.0, 20.0]) == [1.0, 4.0, 2.5, 2.5]


def test_spearman_by_hand() -> None:
    assert spearman([1, 2, 3], [10, 20, 40]) == pytest.approx(1.0)
    assert spearman([3, 2, 1], [10, 20, 40]) == pytest.approx(-1.0)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)  # 1 - 6*2/(4*15)
    assert spearman([1, 2, 3], [5, 5, 5]) is None
    assert spearman([5, 5, 5], [1, 2, 3]) == 0.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_spearman_is_the_correlation_of_ranks(pairs: list[tuple[int, int]]) -> None:
    left, right = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    found = spearman(left, right)
    if len(set(left)) > 1 and len(set(right)) > 1:
        assert found == pytest.approx(float(np.corrcoef(ranks(left), ranks(right))[0, 1]), abs=1e-9)
    else:
        assert found in (None, 0.0)
