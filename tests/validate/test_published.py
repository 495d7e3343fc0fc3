"""The shipped runs: almost all of the complete ones are scored, and predictions do not get worse than they were."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.validate.runs import validated

PUBLISHED = Path(__file__).parent.parent / "published" / "runs.csv"

# A bound against regression, not a claim: medians as they were measured, rounded up to the next percent.
# (group, name): (step time, peak memory); None where nothing was measured
MEDIANS: dict[tuple[str, str], tuple[float | None, float | None]] = {
    ("all", ""): (0.13, 0.03),
    ("recommended", ""): (0.10, 0.02),
    ("by_framework", "fsdp"): (0.03, 0.06),
    ("by_framework", "megatron"): (0.16, 0.03),
    ("by_source", "JAX-Toolbox Pax README"): (0.11, None),
    ("by_source", "Vocabulary Parallelism artifact (MLSys 2025)"): (0.12, 0.05),
    ("by_source", "Zero Bubble Pipeline Parallelism (ICLR 2024)"): (0.08, 0.03),
    ("by_source", "bigscience-bloom-prequel"): (0.12, 0.08),
    ("by_source", "bigscience-gpt2-v100"): (0.23, 0.15),
    ("by_source", "internevo-train-performance"): (0.07, None),
    ("by_source", "megatron-bridge-perf-summary"): (0.17, None),
    ("by_source", "megatron-kwai-atc24"): (0.06, 0.02),
    ("by_source", "megatron-lm-ci-golden"): (0.61, 0.02),
    ("by_source", "mosaicml-llm-foundry"): (0.02, None),
    ("by_source", "mosaicml-llm-foundry-2023-07"): (0.02, None),
    ("by_source", "nvidia-dgxc-benchmarking"): (0.05, None),
    ("by_source", "vtrain-ground-truth"): (0.03, None),
    ("by_source", "xtuner-megatron-moe-benchmark"): (0.23, None),
}


@functools.cache
def found() -> dict[str, Any]:
    return validated(PUBLISHED.read_bytes())


def test_coverage() -> None:
    coverage = found()["coverage"]
    assert coverage["rows"] == 1188
    assert coverage["complete_rows_scored"] >= 0.85 * coverage["complete_rows"]


@pytest.mark.parametrize("group", MEDIANS, ids=" ".join)
def test_medians_are_no_worse(group: tuple[str, str]) -> None:
    kind, name = group
    summary = found()["summary"][kind]
    values = summary[name] if name else summary
    for subject, most in zip(("step_time", "peak_memory"), MEDIANS[group], strict=True):
        median = values[subject]["median_abs_relative_error"]
        assert (median is None) if most is None else median <= most, (subject, median)


def test_runs_of_llm_foundry() -> None:
    """FSDP in bf16 on A100 and H100, one setting for both: a mean below 8 %, where planners of others have 12.7 %."""
    errors = [
        abs(row["step_time"]["relative_error"])
        for row in found()["rows"]
        if row["source"].startswith("mosaicml-llm-foundry") and row["workload"]["precision"] == "bf16"
    ]
    assert len(errors) > 60
    assert sum(errors) / len(errors) < 0.03


# mean error of step time, of runs that others report the same figure for
MEANS = {
    "vtrain-ground-truth": 0.08,  # 47 runs on 512 GPUs; the best of other tools 11.1 % of a larger set
    "Korthikanti et al. 2022, Reducing Activation Recomputation": 0.03,  # the best of others 3.65 %
}


@pytest.mark.parametrize("source", MEANS)
def test_means_beat_what_others_report(source: str) -> None:
    errors = [
        abs(row["step_time"]["relative_error"])
        for row in found()["rows"]
        if row["source"].startswith(source) and row["step_time"]["relative_error"] is not None
    ]
    assert errors and sum(errors) / len(errors) < MEANS[source]


def test_nine_of_ten_recommended_peaks() -> None:
    assert found()["summary"]["recommended"]["peak_memory"]["p90_abs_relative_error"] <= 0.15


def test_every_group_of_ten_runs_has_a_bound() -> None:
    summary = found()["summary"]
    large = {
        (kind, name)
        for kind in ("by_framework", "by_source")
        for name, values in summary[kind].items()
        if max(values["step_time"]["rows"], values["peak_memory"]["rows"]) >= 10
    }
    assert large <= set(MEDIANS)


def test_contradicted_verdicts_are_no_more() -> None:
    verdicts = found()["summary"]["all"]["verdicts"]
    assert verdicts["oom_called_fit"] <= 1
    assert verdicts["fit_called_no"] == 0


def test_the_strategy_picked_is_within_one_percent_of_the_best_measured() -> None:
    """Where predictions alone choose among runs of one job; the best of other tools loses 1.3 % on average."""
    choice = found()["summary"]["recommended"]["step_time"]["choice"]
    assert choice["groups"] >= 40 and choice["mean_regret"] <= 0.01
