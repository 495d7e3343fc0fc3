"""A small file with known answers, exactly; and hostile rows, which never end in an exception."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validate.runs import LOOKUPS, job, validated, written
from toolkit.errors import ToolkitError
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.framework_memory import as_measured
from toolkit.registry.calibrations import load_calibration
from toolkit.validate.rows import COUNTS, NUMBERS, TEXT

CALIBRATION = load_calibration()
GIB = 2**30
# three strategies of one job, in the order of their predicted times by construction of the measured ones
STRATEGIES: tuple[dict[str, object], ...] = ({"tp": 1}, {"tp": 2}, {"tp": 4})
ERRORS = (0.10, -0.20, 0.05)  # (predicted - measured) / measured of the step time
MEMORY = (0.50, 0.02, -0.01)


def known(**more: object) -> list[dict[str, object]]:
    """Rows whose measured values are the predictions divided by 1 + error."""
    made: list[dict[str, object]] = []
    for index, (strategy, error, held) in enumerate(zip(STRATEGIES, ERRORS, MEMORY, strict=True)):
        each = job(**strategy)
        estimate = evaluate(each.model, each.cluster, each.workload, each.strategy, CALIBRATION)
        seen = as_measured(estimate.memory, each.cluster.accelerator, each.strategy, CALIBRATION, "allocated")
        measured = {
            "id": f"r{index}",
            "step_time_s": repr(estimate.step.seconds / (1 + error)),
            "peak_mem_gib": repr(float(seen) / (1 + held) / GIB),
            "mem_basis": "allocated",
        }
        made.append(strategy | measured | more)
    return made


def near(expected: dict[str, Any]) -> Any:
    return pytest.approx(expected, rel=1e-9)


def test_statistics_are_exact() -> None:
    found = validated(written(*known()))
    time, held = found["summary"]["all"]["step_time"], found["summary"]["all"]["peak_memory"]
    seconds = [row["step_time"]["measured_seconds"] for row in found["rows"]]
    predicted = [row["step_time"]["predicted_seconds"] for row in found["rows"]]
    order = [[sorted(values).index(value) for value in values] for values in (seconds, predicted)]
    assert time["rank_groups"] == 1
    assert time["rank_correlation"] == pytest.approx(1 - sum((a - b) ** 2 for a, b in zip(*order, strict=True)) / 4)
    for values, errors in ((time, (0.05, 0.10, 0.20)), (held, (0.01, 0.02, 0.50))):
        assert values["rows"] == 3
        assert values["median_abs_relative_error"] == pytest.approx(errors[1], rel=1e-9)
        assert values["p90_abs_relative_error"] == pytest.approx(errors[1] + 0.8 * (errors[2] - errors[1]), rel=1e-9)
        assert values["worst_abs_relative_error"] == pytest.approx(errors[2], rel=1e-9)
    assert (time["bias"], held["bias"]) == near((0.05, 0.02))
    assert [row["step_time"]["relative_error"] for row in found["rows"]] == near(list(ERRORS))


def test_groups_and_their_names() -> None:
    summary = validated(written(*known(), *known(source="other", gpu="H200-SXM", gpu_mem_gb=141)))["summary"]
    assert set(summary) == {"all", "recommended", "by_source", "by_framework", "by_accelerator"}
    assert set(summary["by_source"]) == {"tests", "other"}
    assert set(summary["by_accelerator"]) == {"h100-sxm5-80gb", "h200-sxm-141gb"}
    assert set(summary["by_framework"]) == {"megatron"}
    assert (summary["all"]["scored"], summary["by_source"]["other"]["scored"]) == (6, 3)
    assert summary["all"]["step_time"]["rows"] == 6 and summary["by_source"]["other"]["step_time"]["rows"] == 3
    assert set(summary["all"]) == {"scored", "step_time", "peak_memory", "verdicts", "skipped"}


def test_skipped_rows_count_where_they_belong() -> None:
    summary = validated(written({"tp": ""}, {"seq_len": "", "gpu": "TPU", "source": "other"}))["summary"]
    reasons = {"missing: tp": 1, "missing: seq_len": 1}
    assert summary["all"]["skipped"] == {"rows": 2, "reasons": reasons}
    assert summary["by_source"]["other"]["skipped"] == {"rows": 1, "reasons": {"missing: seq_len": 1}}
    assert {name: each["skipped"]["rows"] for name, each in summary["by_accelerator"].items()} == {
        "h100-sxm5-80gb": 1,
        "TPU": 1,
    }
    assert summary["by_framework"]["megatron"]["skipped"]["rows"] == 2


def test_recommended_rows_are_those_of_scoreset() -> None:
    rows = known()
    rows[0]["scoreset"], rows[1]["scoreset"], rows[2]["scoreset"] = "time", "mem", "both"
    recommended = validated(written(*rows))["summary"]["recommended"]
    assert (recommended["step_time"]["rows"], recommended["peak_memory"]["rows"]) == (2, 2)
    assert recommended["verdicts"]["rows"] == 3


def test_nothing_is_correlated_between_different_jobs() -> None:
    rows = known()
    rows[0]["global_batch"] = 128
    found = validated(written(*rows))["summary"]["all"]["step_time"]
    assert (found["rank_correlation"], found["rank_groups"]) == (None, 0)


def test_verdicts_against_outcomes() -> None:
    small: dict[str, object] = {"layers": 2, "outcome": "OOM"}
    large: dict[str, object] = {"tp": 1, "pp": 1, "micro_batch": 4, "zero_norm": "0"}
    guessed = large | {"recompute_norm": ""}
    no_size = small | {"gpu_mem_gb": ""}
    found = validated(written({}, small, large, guessed, no_size))
    verdicts = found["summary"]["all"]["verdicts"]
    assert {name: verdicts[name] for name in ("rows", "oom_called_fit", "fit_called_no")} == {
        "rows": 3,
        "oom_called_fit": 1,
        "fit_called_no": 1,
    }
    assert verdicts["share_of_fits_contradicted"] == 1 / verdicts["called_fit"]
    assert found["summary"]["all"]["step_time"]["rows"] == 3  # what ran out of memory took no time


def test_time_from_tokens_and_what_is_no_measurement() -> None:
    found = validated(written({"step_time_s": "", "tokens_per_s_per_gpu": 1000}, {"step_time_s": "", "params_b": 8}))
    assert found["rows"][0]["step_time"]["measured_seconds"] == pytest.approx(64 * 8192 / (1000 * 16))
    (skipped,) = found["skipped"]
    assert skipped["reason"].startswith("missing: step time")
    assert found["coverage"] == {"rows": 2, "scored": 1, "complete_rows": 1, "complete_rows_scored": 1}


def test_the_printed_step_time_wins_and_memory_of_the_last_rank_is_the_last_stages() -> None:
    last = {"mem_kind": "max_memory_allocated on the logging (last) rank", "peak_mem_gib": 20}
    found = validated(written({"implied_step_time_s": 7, "peak_mem_gib": 20, "pp": 4}, {"pp": 4, **last}))
    whole, end = found["rows"]
    assert (whole["step_time"]["measured_seconds"], end["step_time"]["measured_seconds"]) == (7, 10)
    assert end["memory_parts"]["logits_bytes"] > 0 == whole["memory_parts"]["logits_bytes"]


def test_rows_show_their_parts() -> None:
    (row,) = validated(written({}))["rows"]
    parts = row["memory_parts"]
    assert sum(parts.values()) == pytest.approx(row["peak_memory"]["predicted_bytes"])
    assert row["step_parts"]["seconds"] == row["step_time"]["predicted_seconds"]
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_an_empty_summary_is_one() -> None:
    summary = validated(written({"n_gpus": ""}))["summary"]["all"]
    assert summary["step_time"]["rows"] == 0 and summary["step_time"]["bias"] is None


EXTREME = st.one_of(st.integers(1, 64), st.sampled_from([1, 8, 10**9, 10**6, 10**4, 576]))


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(COUNTS)), EXTREME, max_size=6),
    st.dictionaries(st.sampled_from(sorted(NUMBERS)), st.floats(1e-18, 1e18), max_size=3),
    st.dictionaries(
        st.sampled_from(sorted({*TEXT} - {"id"})), st.text("aegilmnoprstxzABCD0123489:+ ./[(", max_size=12)
    ),
)
def test_any_row_is_scored_or_has_a_reason(counts: Any, numbers: Any, texts: Any) -> None:
    try:
        found = validated(written(counts | numbers | texts))
    except ToolkitError as error:
        assert error.problems  # a count above the most that is taken
        return
    assert len(found["rows"]) + len(found["skipped"]) == 1
    assert all(each["reason"] for each in found["skipped"])
    for row in found["rows"]:
        assert row["step_time"]["predicted_seconds"] > 0 and math.isfinite(row["peak_memory"]["predicted_bytes"])
    json.dumps(found, allow_nan=False)


def test_look_ups_are_kept() -> None:
    assert LOOKUPS.models.find("llama-3-8b") is LOOKUPS.models.find("llama-3-8b")
