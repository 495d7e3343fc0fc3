"""What is compared with a prediction, and what cannot be."""

from __future__ import annotations

from tests.validate.runs import LOOKUPS, row
from toolkit.registry.calibrations import load_calibration
from toolkit.validate.job import Job, job_of
from toolkit.validate.score import Score, score


def _scored(**changes: object) -> Score | str:
    found = job_of(row(**changes), LOOKUPS)
    assert isinstance(found, Job)
    return score(found, load_calibration("assumed"))


def test_a_run_faster_than_any_product_of_an_assumed_precision_lacks_its_precision() -> None:
    # 64 x 8192 tokens of 8 billion parameters on 16 H100: 2 s at the 794.5 TFLOP/s ever measured in bf16
    assert isinstance(_scored(precision_norm="", step_time_s=2.2), Score)
    found = _scored(precision_norm="", step_time_s=1.8)
    assert isinstance(found, Score) and found.measured_seconds is None
    assert found.job.unscored["step_time"].startswith("missing: precision")
    stated = _scored(precision_norm="bf16", step_time_s=1.8)
    assert isinstance(stated, Score) and stated.measured_seconds == 1.8
