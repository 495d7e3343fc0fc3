"""The experts' list: what is counted, what is listed, and why two strategies differ."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests import residual_table
from tests.validate.runs import LOOKUPS, job
from toolkit.registry.calibrations import load_calibration
from toolkit.validate.evaluated import jobs_of
from toolkit.validate.experts import experts, why
from toolkit.validate.job import Job

# two strategies of one job, one of another, and one that no search has
ROWS: tuple[dict[str, object], ...] = (
    {"id": "slow", "tp": 8, "pp": 1, "recompute_norm": "full", "step_time_s": 20},
    {"id": "fast", "tp": 2, "pp": 1, "step_time_s": 10},
    {"id": "other", "global_batch": 128, "step_time_s": 19},
    {"id": "no time", "global_batch": 256, "step_time_s": "", "peak_mem_gib": 30},
)


@functools.cache
def found() -> dict[str, Any]:
    jobs: list[Job] = [job(**row) for row in ROWS]
    heard: list[str] = []
    return experts(jobs, load_calibration(), heard.append)


def test_jobs_and_strategies_are_counted() -> None:
    assert (found()["jobs"], found()["strategies"]) == (2, 3)
    counts = (found()[name] for name in ("no_slower", "slower_with_excuse", "slower_without_excuse", "nothing_fits"))
    assert sum(counts) == 3


def test_a_job_is_listed_by_its_fastest_published_strategy() -> None:
    first, second = found()["list"]
    assert (first["ids"], second["ids"]) == (["slow", "fast"], ["other"])
    assert first["measured_seconds"] == 10 and "tp2" in first["published"]["strategy"]


def test_the_choice_is_no_slower_and_its_gain_is_the_difference() -> None:
    for each in found()["list"]:
        published, chosen = each["published"]["predicted_seconds"], each["chosen"]["predicted_seconds"]
        assert each["gain"] == pytest.approx(1 - chosen / published)
        assert chosen <= published * (1 + 1e-9) or each["excuse"]
        assert each["chosen_of_any_framework"]["predicted_seconds"] <= chosen * (1 + 1e-9)


def test_why_names_the_largest_differences() -> None:
    from toolkit.search.planner import choose
    from toolkit.search.request import Request

    slow, fast = (job(**row) for row in ROWS[:2])
    asked = Request(model=slow.model, cluster=slow.cluster, workload=slow.workload)
    one, two = (choose(asked, load_calibration(), each.strategy) for each in (slow, fast))
    reasons = why(one, two)
    assert any(reason.startswith("recompute -") for reason in reasons) and len(reasons) <= 3
    assert why(one, one) == []


@pytest.mark.slow
def test_no_published_strategy_is_faster_without_a_reason() -> None:
    """For each published run the planner's own best is predicted no slower, or the search says why it has it not."""
    jobs = [each for each in jobs_of(residual_table.rows(), LOOKUPS) if isinstance(each, Job)]
    counts = experts(jobs, load_calibration(), lambda _: None)
    assert counts["slower_without_excuse"] == 0
    assert counts["no_slower"] >= 0.75 * counts["strategies"]
    assert all(each["excuse"] for each in counts["list"] if each["chosen"] is None)


def test_where_the_planner_has_no_plan_of_the_family_the_cause_is_counted() -> None:
    """fp8 under FSDP is refused by a rule; a dense 7B on one GPU of 80 GB fits no Megatron layout."""
    rows: tuple[dict[str, object], ...] = (
        {"id": "fp8", "framework": "fsdp", "zero_norm": 3, "precision_norm": "fp8", "tp": 1, "pp": 1},
        {
            "id": "fp8 again",
            "framework": "fsdp",
            "zero_norm": 3,
            "precision_norm": "fp8",
            "tp": 1,
            "pp": 1,
            "micro_batch": 2,
        },
        {"id": "large", "n_gpus": 1, "tp": 1, "pp": 1, "dp": 1, "step_time_s": 100},
    )
    result = experts([job(**row) for row in rows], load_calibration(), lambda words: None)
    because = result["nothing_fits_because"]
    assert result["nothing_fits"] == sum(because.values()) == 3
    assert because == {"fp8 is planned for Megatron only": 2, "no strategy fits by the memory estimate": 1}
