"""When a fault comes: waiting for a part of a run, and telling in which part it has come.

``pending``     requeued, and not started again
``preflight``   the nodes are checked
``start-up``    from the start of the launcher to the first step
``step``        anywhere in a step
``save``        in the step that saves, while it is saved or just after
``evaluation``  the same of a step that is followed by an evaluation
``end``         after the last step
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.cluster import operator_work, slurm
from tests.cluster.runs import Run
from toolkit.runtime import outcome
from toolkit.runtime.checkpoint import FINISHED
from toolkit.runtime.telemetry import read_evaluations

PENDING, PREFLIGHT, START_UP, STEP, SAVE, EVALUATION, END = MOMENTS = (
    *("pending", "preflight", "start-up", "step", "save", "evaluation", "end"),
)
STEPS, SAVE_STEPS, EVAL_STEPS = 96, 8, 12
LONG = 400  # seconds that nothing takes
OVER = slurm.FINAL - {"NODE_FAIL", "PREEMPTED"}  # those two are requeued


class TooLate(Exception):
    """The moment cannot come any more: the run is finished, or its job is over."""


def over(run: Run) -> bool:
    """Whether the job is, for good: a state may be that of a requeue for a moment."""
    if run.job(older=0.2)["JobState"] not in OVER:
        return False
    before = run.job()
    time.sleep(0.7)
    return before["JobState"] == run.job()["JobState"] and before["Restarts"] == run.job()["Restarts"]


def starts(run: Run) -> int:
    """How often the launcher was started, in all jobs of the run."""
    return run.log().count("\nstart: job")


def wait_for(moment: str, run: Run, dice: random.Random, start_up: float) -> None:
    """Return at a random time in it, or raise TooLate; ``start_up`` is the seconds that one is known to take."""
    if moment == PENDING:
        _until(run, lambda: run.job(older=0.1)["JobState"] == "PENDING" or _running(run))
        time.sleep(dice.uniform(0, 4))
    elif moment == PREFLIGHT:
        _until(run, lambda: _running(run) or run.newest() >= STEPS)
        time.sleep(dice.uniform(0, 1.2))
    elif moment == START_UP:
        _until(run, lambda: _launched(run) or run.newest() >= STEPS)
        time.sleep(dice.uniform(0, start_up))
    else:
        _until(run, lambda: _own_steps(run) > 0)
        newest = run.newest()
        every = {STEP: 1, SAVE: SAVE_STEPS, EVALUATION: EVAL_STEPS, END: STEPS}[moment]
        target = newest + dice.randint(0, SAVE_STEPS) if moment == STEP else (newest // every + 1) * every
        _until(run, lambda: run.newest() >= min(target, STEPS))
        time.sleep(dice.uniform(0, {STEP: 0.3, SAVE: 0.4, EVALUATION: 0.3, END: 2.0}[moment]))


def section(run: Run) -> str:
    """In which part the run is now."""
    if run.job()["JobState"] == "PENDING":
        return PENDING
    if not _launched(run):
        return PREFLIGHT
    if not _own_steps(run):
        return START_UP
    newest = run.newest()
    folder = run.output / f"checkpoint-{newest}"
    if newest % SAVE_STEPS == 0 and folder.exists() and not (folder / "manifest.json").exists():
        return SAVE
    if newest % EVAL_STEPS == 0 and all(each.step != newest for each in read_evaluations(run.output)):
        return EVALUATION
    return END if newest >= STEPS else STEP


def _until(run: Run, condition: Callable[[], bool]) -> None:
    end, mended = time.monotonic() + LONG, time.monotonic()
    while not condition():
        if time.monotonic() > mended + 30 and run.job(older=0.5)["JobState"] == "PENDING":
            mended = time.monotonic()
            operator_work.mend(run)
        if (run.output / FINISHED).exists() or over(run):
            raise TooLate
        if time.monotonic() > end:
            raise AssertionError(f"nothing happens ({run.job()['JobState']}, {run.job()['Reason']})\n{run.log()}")
        time.sleep(0.03)


def _running(run: Run) -> bool:
    return run.job(older=0.1)["JobState"] == "RUNNING"


def _launched(run: Run) -> bool:
    """Whether the newest start of the job, or attempt in it, has come to its launcher."""
    said = run.log()
    return said.rfind("\nstart: job") > max(said.rfind("\nend: srun returned"), said.rfind("\nrequeue")) and (
        f"\nstart: job {run.number} restart {run.job(older=0.5)['Restarts']} " in said
    )


def _own_steps(run: Run) -> int:
    """Steps that the attempt which runs has made: its folder is as old as itself."""
    try:
        began = (run.output / outcome.ATTEMPTS).stat().st_mtime
    except OSError:
        return 0
    return sum(line["ended_unix"] > began for line in run.lines()) if _launched(run) else 0
