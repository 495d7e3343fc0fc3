"""The whole validation as JSON: summary, coverage, skipped rows with reasons, and every row's parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from toolkit.calibration import Calibration
from toolkit.strategy import describe, to_json
from toolkit.validate.job import Job, Lookups, Skip, job_of, skip
from toolkit.validate.rows import Row
from toolkit.validate.score import Score, measured_bytes, measured_seconds, score
from toolkit.validate.summary import summarise

NOTHING = "missing: step time, tokens/s, peak memory (MFU and TFLOP/s are counted in too many ways)"


def validate(rows: Iterable[Row], lookups: Lookups, calibration: Calibration) -> dict[str, Any]:
    """Evaluate every row; pure but for the look-ups. Names are stable, more keys may come."""
    scores: list[Score] = []
    skipped: list[Skip] = []
    stated = stated_scored = 0
    for row in rows:
        found = _evaluated(row, lookups, calibration)
        complete = states_everything(row)
        stated += complete
        if isinstance(found, Score):
            scores.append(found)
            stated_scored += complete
        else:
            skipped.append(found)
    return {
        "summary": summarise(scores, skipped),
        "coverage": {
            "rows": len(scores) + len(skipped),
            "scored": len(scores),
            "complete_rows": stated,
            "complete_rows_scored": stated_scored,
        },
        "calibration": calibration.name,
        "skipped": [
            {"id": each.row.name, "source": each.row.text("source"), "reason": each.reason} for each in skipped
        ],
        "rows": [_element(each) for each in scores],
    }


def states_everything(row: Row) -> bool:
    """Whether model, GPUs, strategy, batch, sequence length, and a time or a peak are stated."""
    model = all(row.count(name) for name in ("layers", "hidden", "heads"))
    strategy = row.count("n_gpus") == 1 or bool(row.text("zero_norm") or (row.count("tp") and row.count("pp")))
    batch = row.count("global_batch") or row.count("micro_batch")
    return bool(model and strategy and batch and row.count("seq_len") and row.text("gpu") and _measured(row))


def _measured(row: Row) -> bool:
    return measured_seconds(row) is not None or measured_bytes(row) is not None or row.text("outcome") == "OOM"


def _evaluated(row: Row, lookups: Lookups, calibration: Calibration) -> Score | Skip:
    if not _measured(row):
        return skip(row, NOTHING, lookups)
    job = job_of(row, lookups)
    if isinstance(job, Skip):
        return job
    found = score(job, calibration)
    if isinstance(found, str):
        return skip(row, found, lookups)
    if found.measured_seconds is None and found.measured_bytes is None and not found.outcome:
        return skip(row, "; ".join(job.unscored.values()) or _open(job), lookups)
    return found


def _open(job: Job) -> str:
    guessed = "; ".join(job.assumed) or "the memory of the GPU"
    return f"missing: what judges a run that went out of memory (assumed: {guessed})"


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
        },
        "peak_memory": {
            "predicted_bytes": each.predicted_bytes,
            "measured_bytes": each.measured_bytes,
            "relative_error": each.memory_error,
            "basis": job.row.text("mem_basis") or "unspecified",
        },
        "verdict": {"predicted": each.verdict, "outcome": each.outcome},
        "memory_parts": msgspec.structs.asdict(each.memory),
        "step_parts": msgspec.structs.asdict(each.estimate.step),
    }
