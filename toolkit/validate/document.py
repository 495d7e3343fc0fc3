"""The whole validation as JSON: summary, coverage, skipped rows with reasons, and every row's parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toolkit.calibration import Calibration
from toolkit.residuals import ResidualTable
from toolkit.strategy import describe, to_json
from toolkit.validate.bars import with_bars
from toolkit.validate.evaluated import evaluated, is_measured, jobs_of
from toolkit.validate.job import Lookups
from toolkit.validate.rows import Row
from toolkit.validate.score import Bar, Score
from toolkit.validate.summary import summarise


def validate(
    rows: Sequence[Row],
    lookups: Lookups,
    calibration: Calibration,
    residuals: ResidualTable | None = None,
    done: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Evaluate every row; pure but for the look-ups. Names are stable, more keys may come.

    With ``residuals`` every scored row gets its 80 % interval, made from the runs of all other sources.
    """
    scores, skipped = evaluated(jobs_of(rows, lookups), lookups, calibration, done)
    if residuals is not None:
        scores = with_bars(scores, residuals)
    complete = {row.line for row in rows if states_everything(row)}
    return {
        "summary": summarise(scores, skipped),
        "coverage": {
            "rows": len(scores) + len(skipped),
            "scored": len(scores),
            "complete_rows": len(complete),
            "complete_rows_scored": sum(each.job.row.line in complete for each in scores),
        },
        "notes": repeated_ids(rows),
        "calibration": calibration.reference,
        "skipped": [
            {"id": each.row.name, "source": each.row.text("source"), "reason": each.reason} for each in skipped
        ],
        "rows": [_element(each) for each in scores],
    }


def repeated_ids(rows: Sequence[Row]) -> list[str]:
    """A sentence where ids stand for more than one row; every such row is scored all the same."""
    counted = Counter(row.text("id") for row in rows if row.text("id"))
    found = [f"{name} ({count} rows)" for name, count in counted.items() if count > 1]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    several = "1 id stands" if len(found) == 1 else f"{len(found)} ids stand"
    return [f"{several} for more than one row: {', '.join(found[:5])}{more}"] if found else []


def states_everything(row: Row) -> bool:
    """Whether model, GPUs, strategy, batch, sequence length, and a time or a peak are stated."""
    model = all(row.count(name) for name in ("layers", "hidden", "heads"))
    strategy = row.count("n_gpus") == 1 or bool(row.text("zero_norm") or (row.count("tp") and row.count("pp")))
    batch = row.count("global_batch") or row.count("micro_batch")
    return bool(model and strategy and batch and row.count("seq_len") and row.text("gpu") and is_measured(row))


def interval_element(bar: Bar | None, unit: str) -> dict[str, Any] | None:
    """An interval as JSON; ``held`` says whether it holds what was measured."""
    if bar is None:
        return None
    return {
        f"low_{unit}": bar.interval.low,
        f"high_{unit}": bar.interval.high,
        "held": bar.held,
        "held_by_runs_of_all_sources": bar.held_by_run,
        "distance": bar.interval.distance,
        "based_on": msgspec.to_builtins(bar.interval.based_on),
    }


def _element(each: Score) -> dict[str, Any]:
    job = each.job
    return {
        "id": job.row.name,
        "source": job.row.text("source"),
        "model": job.model.name,
        "accelerator": job.cluster.accelerator.name,
        "gpus": job.cluster.num_gpus,
        "scoreset": job.row.text("scoreset"),
        "strategy": to_json(job.strategy),
        "description": describe(job.strategy),
        "workload": msgspec.to_builtins(job.workload),
        "assumed": list(job.assumed),
        "unscored": job.unscored,
        "step_time": {
            "predicted_seconds": each.predicted_seconds,
            "measured_seconds": each.measured_seconds,
            "relative_error": each.time_error,
            "interval80": interval_element(each.time_bar, "seconds"),
        },
        "peak_memory": {
            "predicted_bytes": each.predicted_bytes,
            "measured_bytes": each.measured_bytes,
            "relative_error": each.memory_error,
            "interval80": interval_element(each.memory_bar, "bytes"),
            "basis": job.row.text("mem_basis") or "unspecified",
        },
        "verdict": {"predicted": each.verdict, "outcome": each.outcome},
        "memory_parts": msgspec.structs.asdict(each.memory),
        "step_parts": msgspec.structs.asdict(each.estimate.step),
    }
