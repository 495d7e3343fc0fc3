"""Fits on runs whose truth is known: what the runs say is found again, what they don't say stays."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.validate.runs import job
from toolkit.calibrate.fit import Problem, fit, log_memory, log_time
from toolkit.calibrate.travel import document, fits
from toolkit.calibrate.writing import fitted_calibration, text
from toolkit.calibration import Calibration
from toolkit.estimate.evaluate import evaluate
from toolkit.registry.calibrations import load_calibration
from toolkit.validate.job import Job

STATED = load_calibration()
TRUTH = STATED.with_values({"sustained_matmul_fraction": 0.84, "memory_fraction": 0.6})
SHAPES: tuple[dict[str, object], ...] = (
    {"tp": 1},
    {"tp": 2},
    {"tp": 4},
    {"pp": 1},
    {"pp": 4},
    {"seq_len": 4096},
    {"recompute_norm": "full"},
    {"micro_batch": 2},
)


def jobs(truth: Calibration, sources: int = 3, off: dict[str, float] | None = None) -> list[Job]:
    """Runs of several sources, measured as ``truth`` predicts them; ``off`` multiplies those of a source."""
    found = []
    for source in range(sources):
        for index, shape in enumerate(SHAPES):
            made = job(**shape)
            seconds = evaluate(made.model, made.cluster, made.workload, made.strategy, truth).step.seconds
            name = f"s{source}"
            seconds *= (off or {}).get(name, 1.0)
            found.append(job(**shape, id=f"{name}-{index}", source=name, step_time_s=repr(float(seconds))))
    return found


def test_a_known_truth_is_found_again() -> None:
    found = fit(Problem(jobs(TRUTH), STATED, log_time))
    assert np.median(np.abs(found.fitted)) < 0.3 * np.median(np.abs(found.stated))
    assert np.median(np.abs(found.left_out)) < 0.5 * np.median(np.abs(found.stated))
    assert found.values["sustained_matmul_fraction"] < STATED["sustained_matmul_fraction"]
    for name, row in STATED.coefficients.items():
        assert row.low <= found.values[name] <= row.high


def test_what_no_run_speaks_of_stays_and_has_no_runs() -> None:
    found = fit(Problem(jobs(TRUTH), STATED, log_time))
    for name in ("context_bytes", "host_adam_parameters_per_second", "expert_imbalance"):
        assert found.values[name] == STATED[name] and found.runs[name] == 0 == found.errors[name]
    assert found.runs["sustained_matmul_fraction"] == 3 * len(SHAPES)
    assert found.sources_of["sustained_matmul_fraction"] == ("s0", "s1", "s2")


def test_perfect_predictions_change_nothing() -> None:
    found = fit(Problem(jobs(STATED), STATED, log_time))
    assert found.values == pytest.approx({name: row.value for name, row in STATED.coefficients.items()}, rel=1e-6)


def test_a_source_that_is_off_is_worse_when_it_is_left_out() -> None:
    found = fit(Problem(jobs(STATED, off={"s0": 1.3}), STATED, log_time))
    mine = np.array([source == "s0" for source in found.sources])
    assert np.abs(found.left_out[mine]).mean() >= np.abs(found.fitted[mine]).mean()
    assert found.errors["sustained_matmul_fraction"] > 0


def test_memory_is_fitted_on_peaks() -> None:
    rows = [job(**shape, id=str(index), peak_mem_gib=60, source=f"s{index % 2}") for index, shape in enumerate(SHAPES)]
    problem = Problem(rows, STATED, log_memory)
    assert len(problem.jobs) == len(SHAPES)
    assert fit(problem).runs["sustained_matmul_fraction"] == 0


def test_a_fit_uses_the_recommended_rows_where_there_are_some() -> None:
    rows = jobs(TRUTH)
    chosen = [job(**shape, id="r", source="s9", scoreset="time", step_time_s=9) for shape in SHAPES[:3]]
    problem, found = fits([*rows, *chosen], STATED, lambda _: None)["step_time"]
    assert {each.row.text("source") for each in problem.jobs} == {"s9"}
    summary = document(problem, found)
    assert summary["rows"] == 3 and set(summary["by_source"]) == {"s9"}
    assert fits(rows[:2], STATED, lambda _: None) == {}


def test_a_written_calibration_is_read_back(tmp_path: Path) -> None:
    found = fit(Problem(jobs(TRUTH), STATED, log_time))
    made = fitted_calibration("mine", 'a "file"\x7f.csv', STATED, [found])
    path = tmp_path / "mine.toml"
    path.write_text(text(made))
    assert load_calibration(str(path)) == msgspec.structs.replace(made, path=str(path))
    row = made.coefficients["sustained_matmul_fraction"]
    assert (row.status, row.runs, row.sources) == ("fitted", 3 * len(SHAPES), ("s0", "s1", "s2"))
    assert f"stated before: {STATED['sustained_matmul_fraction']:g}" in row.source
    assert made.coefficients["context_bytes"] == STATED.coefficients["context_bytes"]


def test_one_source_is_no_evidence_that_a_fit_travels() -> None:
    found = fit(Problem(jobs(TRUTH, sources=1), STATED, log_time))
    assert fitted_calibration("mine", "runs.csv", STATED, [found]).coefficients == STATED.coefficients


def test_the_shipped_calibration_survives_its_own_writer() -> None:
    values: dict[str, Any] = tomllib.loads(text(STATED))
    assert msgspec.convert(values, Calibration) == STATED
