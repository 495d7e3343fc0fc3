"""One job evaluated by the planner's functions, beside what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from toolkit.calibration import Calibration
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.framework_memory import as_measured
from toolkit.estimate.layout import stages, tables
from toolkit.estimate.memory import stage_memory
from toolkit.estimate.verdict import verdict
from toolkit.estimates import VERDICTS, Estimate, MemoryEstimate
from toolkit.interval import Interval
from toolkit.validate.job import GIB, Job
from toolkit.validate.notes import read_on_last_stage
from toolkit.validate.plausible import as_it_fitted, impossible
from toolkit.validate.rows import Row

# a verdict needs these: with one of them guessed, a contradiction would say nothing about the planner
_NEEDED_FOR_A_VERDICT = ("no recomputation", "recomputation", "micro batch", "global batch", "ZeRO stage", "vocabulary")


class Bar(NamedTuple):
    """The interval that a run gets from the runs of other sources, and whether it holds what was measured."""

    interval: Interval
    held: bool
    held_by_run: bool  # by the interval from all runs but this one: what a job like a measured one can expect


@dataclass(frozen=True)
class Score:
    """Predicted and measured seconds and bytes of one run; None where the row does not state what was measured."""

    job: Job
    estimate: Estimate
    memory: MemoryEstimate  # of the stage that the measurement saw
    predicted_seconds: float
    measured_seconds: float | None
    predicted_bytes: float  # by the basis of the measurement
    measured_bytes: float | None
    verdict: str  # fits | tight | no
    outcome: str  # ok | OOM, or empty where it does not count
    time_bar: Bar | None = None
    memory_bar: Bar | None = None

    @property
    def time_error(self) -> float | None:
        """(predicted - measured) / measured."""
        return _error(self.predicted_seconds, self.measured_seconds)

    @property
    def memory_error(self) -> float | None:
        """(predicted - measured) / measured."""
        return _error(self.predicted_bytes, self.measured_bytes)


def _error(predicted: float, measured: float | None) -> float | None:
    return None if measured is None else predicted / measured - 1.0


def score(job: Job, calibration: Calibration) -> Score | str:
    """Evaluate a job; a sentence where an estimate is not a positive number."""
    job = as_it_fitted(job, calibration)
    found = evaluate(job.model, job.cluster, job.workload, job.strategy, calibration)
    seconds, held = float(found.step.seconds), found.memory
    if read_on_last_stage(job.row.text("mem_kind")):
        table = tables(job.model, job.workload, job.strategy.framework)
        last = stages(job.model, job.strategy, table)[1]
        held = stage_memory(job.model, job.cluster, job.workload, job.strategy, calibration, table, last)
    card = job.cluster.accelerator
    seen = float(as_measured(held, card, job.strategy, calibration, job.row.text("mem_basis")))
    if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(seen) and seen > 0):
        return "not modelled: the estimate is not a positive number"
    return Score(
        job=job,
        estimate=found,
        memory=held,
        predicted_seconds=seconds,
        measured_seconds=compared_seconds(job),
        predicted_bytes=seen,
        measured_bytes=None if "peak_memory" in job.unscored else measured_bytes(job.row),
        verdict=VERDICTS[int(verdict(found.memory.total_bytes, card.memory_bytes))],
        outcome=_outcome(job),
    )


def compared_seconds(job: Job) -> float | None:
    """What was measured, unless the row is at odds with itself; the reason goes into ``unscored``."""
    seconds = measured_seconds(job.row, job.workload.global_batch_size)
    if seconds is not None and "step_time" not in job.unscored:
        reason = impossible(job, seconds)
        if reason:
            job.unscored["step_time"] = reason
    return None if "step_time" in job.unscored else seconds


def measured_seconds(row: Row, batch: int) -> float | None:
    """Seconds of a step: as printed, or global ``batch`` x sequence length / (tokens/s of all GPUs).

    A rate in tokens/s hardly depends on how many micro batches make a step, so it counts without a stated batch too.
    A row that states only MFU or TFLOP/s has no time: what counts as a FLOP differs by a third between sources.
    """
    if row.text("outcome") == "OOM":
        return None
    printed = row.number("implied_step_time_s") or row.number("step_time_s")
    if printed is not None:
        return printed
    rate, gpus = row.number("tokens_per_s_per_gpu"), row.count("n_gpus")
    length = row.count("seq_len")
    if None in (rate, gpus, length):
        return None
    return 1.0 * batch * (length or 0) / ((rate or 1.0) * (gpus or 1))


def measured_bytes(row: Row) -> float | None:
    """Peak bytes of a GPU, of a run that ended well."""
    peak = row.number("peak_mem_gib")
    return None if peak is None or row.text("outcome") == "OOM" else peak * GIB


def _outcome(job: Job) -> str:
    row = job.row
    known = row.number("gpu_mem_gb") is not None and "peak_memory" not in job.unscored
    guessed = any(said.startswith(_NEEDED_FOR_A_VERDICT) for said in job.assumed)
    return row.text("outcome") if row.text("outcome") in ("ok", "OOM") and known and not guessed else ""
