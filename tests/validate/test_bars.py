"""The shipped intervals hold about 80 % of measured runs; the table that they are read from is fresh."""

from __future__ import annotations

import math

import pytest

from tests import residual_table
from tests.validate.runs import LOOKUPS, validated, written
from toolkit.calibrate.residuals import conformal_scale, teaches_time
from toolkit.registry.calibrations import load_calibration
from toolkit.registry.residuals import load_residuals
from toolkit.residuals import Residuals, Run
from toolkit.validate.document import validate
from toolkit.validate.rows import read
from toolkit.validate.score import Score

KINDS = ("step_time", "peak_memory")


@pytest.mark.slow
def test_the_shipped_table_is_what_the_code_makes() -> None:
    made, shipped = residual_table.generated(), load_residuals()
    assert made.sources == shipped.sources and made.features == shipped.features
    for kind in KINDS:
        now, then = getattr(made, kind), getattr(shipped, kind)
        assert now.scale == pytest.approx(then.scale, rel=0.01), f"{kind}: run make golden"
        rows = {run.id: run for run in then.runs}
        assert rows.keys() == {run.id for run in now.runs}
        for run in now.runs:
            assert run.residual == pytest.approx(rows[run.id].residual, abs=1e-3), f"{run.id}: run make golden"
            assert run.point == pytest.approx(rows[run.id].point, abs=2e-3), run.id


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_left_out_sources_hold_four_of_five_runs(kind: str) -> None:
    found = validate(residual_table.rows(), LOOKUPS, load_calibration(), load_residuals())
    held = found["summary"]["all"][kind]["interval80"]
    assert held["rows"] == found["summary"]["all"][kind]["rows"]
    assert 0.75 <= held["share_held"] <= 0.85
    assert 0.75 <= held["share_held_by_runs_of_all_sources"] <= 0.85


def test_a_run_is_beside_its_interval() -> None:
    data = written({"source": "mosaicml-llm-foundry"}, {"id": "b", "source": "nobody"})
    found = validate(read(data, "runs.csv"), LOOKUPS, load_calibration(), load_residuals())
    known, unknown = (row["step_time"]["interval80"] for row in found["rows"])
    predicted = found["rows"][0]["step_time"]["predicted_seconds"]
    for bar in (known, unknown):
        assert bar["low_seconds"] < predicted < bar["high_seconds"]
        assert bar["held"] == (bar["low_seconds"] <= 10 <= bar["high_seconds"])
    assert "mosaicml-llm-foundry" not in {run["source"] for run in known["based_on"]}
    assert found["rows"][0]["peak_memory"]["interval80"] is None
    held = found["summary"]["all"]["step_time"]["interval80"]
    assert held["rows"] == 2 and held["share_held"] == (known["held"] + unknown["held"]) / 2


def test_no_residuals_no_intervals() -> None:
    found = validated(written({}))
    assert found["rows"][0]["step_time"]["interval80"] is None
    assert found["summary"]["all"]["step_time"]["interval80"]["share_held"] is None


def test_the_scale_holds_four_of_five() -> None:
    """Two sources that differ in nothing: the spread of one is judged by that of the other."""
    runs = tuple(Run(f"{s}{i}", s, 0.01 * i, (0.0,)) for s in (0, 1) for i in range(1, 101))
    scale = conformal_scale(runs, Residuals(scale=1.0, kernel=0.6, growth=1.0, runs=runs), 0.81)
    # the 80 % quantile of the other source is 0.80, what 81 % of the runs need beyond the floor is 0.81 - 0.02
    assert scale == pytest.approx((0.81 - 0.02) / 0.80, abs=0.003)
    assert conformal_scale(runs[:100], Residuals(scale=1.0, kernel=0.6, growth=1.0, runs=runs[:100]), 0.81) == 1.0


def test_runs_recommended_for_memory_alone_teach_no_time() -> None:
    data = written({}, {"id": "b", "scoreset": "mem"}, {"id": "c", "scoreset": "both"}, {"id": "d", "scoreset": "time"})
    from toolkit.validate.evaluated import evaluated, jobs_of

    scores: list[Score] = evaluated(jobs_of(read(data, "r"), LOOKUPS), LOOKUPS, load_calibration()).scores
    assert [teaches_time(each) for each in scores] == [True, False, True, True]


def test_residuals_are_logarithms() -> None:
    from toolkit.calibrate.residuals import residual_table as made

    data = written({}, {"id": "b", "step_time_s": 20})
    from toolkit.validate.evaluated import evaluated, jobs_of

    first, second = made(
        evaluated(jobs_of(read(data, "r"), LOOKUPS), LOOKUPS, load_calibration()).scores, "x"
    ).step_time.runs
    assert second.residual - first.residual == pytest.approx(math.log(2), abs=2e-4)
