"""What picking by the prediction costs, and pairs in order, on groups with known answers."""

from __future__ import annotations

import pytest

from tests.validate.runs import validated, written
from toolkit.validate.groups import pairs_in_order, regret


def test_regret_by_hand() -> None:
    assert regret([(1.0, 10.0), (2.0, 8.0), (3.0, 12.0)]) == pytest.approx(0.25)
    assert regret([(1.0, 8.0), (2.0, 9.0)]) == 0.0
    assert regret([(1.0, 8.0), (1.0, 10.0)]) == pytest.approx(0.25)  # told apart by nothing: the worse one


def test_pairs_by_hand() -> None:
    assert pairs_in_order([(1.0, 10.0), (2.0, 8.0), (3.0, 12.0)]) == (2, 3)
    assert pairs_in_order([(1.0, 5.0), (2.0, 5.0)]) == (0, 0)
    assert pairs_in_order([(1.0, 5.0), (1.0, 6.0)]) == (0, 1)
    assert pairs_in_order([(1.0, 5.1), (2.0, 5.0)]) == (0, 0)  # measured alike


def test_repeated_runs_are_one_strategy() -> None:
    """Two of three runs repeat a strategy: two strategies have no rank correlation, and their medians one order."""
    rows = written(
        {"tp": 2, "step_time_s": 9}, {"id": "b", "tp": 2, "step_time_s": 11}, {"id": "c", "tp": 8, "step_time_s": 20}
    )
    times = validated(rows)["summary"]["all"]["step_time"]
    assert (times["rank_correlation"], times["rank_groups"], times["choice"]["pairs"]) == (None, 0, 1)


def test_choice_of_a_file() -> None:
    rows = written({"tp": 1, "step_time_s": 12}, {"tp": 2, "step_time_s": 10}, {"tp": 8, "step_time_s": 15})
    found = validated(rows)
    predicted = [row["step_time"]["predicted_seconds"] for row in found["rows"]]
    measured = (12, 10, 15)
    choice = found["summary"]["all"]["step_time"]["choice"]
    assert (choice["groups"], choice["pairs"]) == (1, 3)
    assert choice["mean_regret"] == choice["max_regret"] == measured[predicted.index(min(predicted))] / 10 - 1


def test_runs_of_one_strategy_are_no_choice() -> None:
    choice = validated(written({}, {"id": "b"}))["summary"]["all"]["step_time"]["choice"]
    assert (choice["groups"], choice["mean_regret"]) == (0, None)
