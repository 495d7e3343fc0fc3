"""Goodput: the share of a run's time in which steps were made that were kept, over all of its restarts.

    goodput = sum of seconds of the steps that count / (t_end - t_start)

``t_start`` is when the first process of the run began, ``t_end`` the last sign of life (a step, an evaluation, the end
that ``run.json`` tells, or the marker FINISHED). Of a step that was made several times the last one counts, of those
which a later start has gone back behind none. Everything else is lost, by cause, and

    productive + repeated + start_up + save + evaluation + idle + other = t_end - t_start

    repeated    steps that a later start made again, or is yet to, since they were not in a checkpoint
    start_up    from the beginning of a process to its first step: imports, data, model, reading the checkpoint
    save        for which saves have held up training, and the end of a start
    evaluation  held-out losses
    idle        from the last sign of life of a start to the next start: queue, detection of the fault, and the part of
                a step or save that a killed start had done
    other       what is left: the loop between steps, and what follows the last step

Source: productive over elapsed time is the goodput of Google's ml-goodput-measurement library, as are the causes (its
badput: start-up, checkpoints, wasted progress, recovery). Not counted here: whether a step was slower than it could be
(that is MFU), and the time in the queue before the first start.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from toolkit.errors import ToolkitError, reason
from toolkit.record import EvaluationRecord, RunRecord, StepRecord
from toolkit.runtime.checkpoint import FINISHED
from toolkit.runtime.telemetry import EVALUATIONS, RUN, STEPS, standing

Record = TypeVar("Record", StepRecord, EvaluationRecord)
Known = TypeVar("Known", StepRecord, EvaluationRecord, RunRecord)
CLOCK_STEP = 2.0  # seconds by which a clock may be corrected in a start, or that of the next one's node differ
PARTS = (
    "productive_seconds",
    "repeated_seconds",
    "start_up_seconds",
    "save_seconds",
    "evaluation_seconds",
    "idle_seconds",
    "other_seconds",
)
STEP_PARTS = ("data", "forward_backward", "optimizer", "other")  # of the seconds of a step


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a run went; the parts sum to ``total_seconds``."""

    goodput: float
    total_seconds: float
    productive_seconds: float
    repeated_seconds: float
    start_up_seconds: float
    save_seconds: float
    evaluation_seconds: float
    idle_seconds: float
    other_seconds: float
    starts: int
    steps: int  # that count
    repeated_steps: int
    productive_by_part: dict[str, float] = {}  # of the steps that count and tell it: seconds on rank 0


def by_part(steps: Iterable[StepRecord]) -> dict[str, float]:
    """Seconds of these steps in each of ``STEP_PARTS``; empty where none tells its parts, as in older files."""
    told = [record.seconds_by_part for record in steps if record.seconds_by_part is not None]
    return {part: sum(getattr(each, part) for each in told) for part in STEP_PARTS} if told else {}


class Start(msgspec.Struct, frozen=True):
    """One process of rank 0, by its ``run.json``."""

    began: float
    ended: float = 0.0  # 0: not known
    last_save_stall: float = 0.0  # after its last step


def account(
    starts: list[Start], steps: list[StepRecord], evaluations: list[EvaluationRecord], end: float = 0.0
) -> Goodput:
    """Goodput of a run: when each start began and ended, and its lines in the order of the file.

    ``end`` is that of the run where something later than its last line tells it. Raises ValueError where no time
    passed.
    """
    kept = standing(steps)
    lost = sorted(set(range(len(steps))) - set(kept))
    productive = sum(steps[number].seconds for number in kept)
    repeated = sum(steps[number].seconds for number in lost)
    saves = sum(record.save_stall_seconds for record in steps) + sum(each.last_save_stall for each in starts)
    evaluating = sum(record.seconds for record in evaluations)
    start_up, idle, last = 0.0, 0.0, starts[0].began
    by_start, evaluations_of = _by_start(steps), _by_start(evaluations)
    for restart, (began, ended) in enumerate((each.began, each.ended) for each in starts):
        idle += began - last
        own, examined = by_start.get(restart, []), evaluations_of.get(restart, [])
        signs = [record.ended_unix for record in own]
        signs += [record.ended_unix for record in examined]
        if own:
            before = [each.seconds for each in examined if each.ended_unix < own[0].ended_unix]
            start_up += own[0].ended_unix - own[0].seconds - own[0].save_stall_seconds - sum(before) - began
        last = max([began, ended, *signs])
        if not own:
            start_up += last - began
    total = max(last, end) - starts[0].began
    if total <= 0.0:
        raise ValueError("no time has passed")
    return Goodput(
        goodput=productive / total,
        total_seconds=total,
        productive_seconds=productive,
        repeated_seconds=repeated,
        start_up_seconds=start_up,
        save_seconds=saves,
        evaluation_seconds=evaluating,
        idle_seconds=idle,
        other_seconds=total - productive - repeated - start_up - saves - evaluating - idle,
        starts=len(starts),
        steps=len(kept),
        repeated_steps=len(lost),
        productive_by_part=by_part(steps[number] for number in kept),
    )


def _by_start(records: list[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for each in records:
        found.setdefault(each.restart, []).append(each)
    return found


def of_run(directory: str | Path) -> Goodput:
    """Goodput of the run in an output directory, finished or not; raises ToolkitError for one that cannot tell it."""
    folder = Path(directory)
    try:
        earlier: list[RunRecord] = []
        while (path := folder / f"run.{len(earlier)}.json").exists():
            earlier.append(_decoded(path.read_bytes(), RunRecord, path))
        records = [*earlier, _decoded((folder / RUN).read_bytes(), RunRecord, folder / RUN)]
        steps = _lines(folder / STEPS, StepRecord)
        evaluations = _lines(folder / EVALUATIONS, EvaluationRecord)
        end = _finished_unix(folder / FINISHED)
    except OSError as error:
        remedy = "give the output directory of a training run: it has run.json and steps.jsonl"
        raise ToolkitError(f"cannot read the telemetry of {folder}: {reason(error)}", remedy=remedy) from error
    if not steps:
        raise ToolkitError(f"no step has been made in {folder}", remedy="wait for the first step")
    if any(not record.process_started_unix for record in records) or any(not each.ended_unix for each in steps):
        raise ToolkitError(
            f"the telemetry of {folder} has no times of day", remedy="it is of an older version, which wrote none"
        )
    _require_one_run(folder, records, steps)
    starts = [Start(r.process_started_unix, r.ended_unix, r.last_save_stall_seconds) for r in records]
    _require_one_after_another(folder, starts, steps)
    return account(starts, steps, evaluations, end)


def _finished_unix(path: Path) -> float:
    """When the run was done, by the marker itself: the file of a copy is younger; 0 where there is none."""
    if not path.exists():
        return 0.0
    try:
        return float(msgspec.json.decode(path.read_bytes())["ended_unix"])
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return path.stat().st_mtime  # of a version that did not tell


def _require_one_run(folder: Path, records: list[RunRecord], steps: list[StepRecord]) -> None:
    """Files of which some are missing, or that are of several runs, would tell nonsense."""
    told = max([each.restart_count for each in records] + [each.restart for each in steps])
    if told != len(records) - 1:
        raise ToolkitError(
            f"{folder} has records of {len(records)} starts, and its files tell of {told + 1}",
            remedy="each start has its own: run.0.json, run.1.json, ..., the newest run.json",
        )
    for each in steps:
        began = records[each.restart].process_started_unix
        if each.ended_unix < began - CLOCK_STEP:
            raise ToolkitError(
                f"step {each.step} in {folder / STEPS} ended {began - each.ended_unix:,.0f} s before its start began",
                remedy="the files are of several runs, or a clock was set back meanwhile: the times tell nothing",
            )


def _require_one_after_another(folder: Path, starts: list[Start], steps: list[StepRecord]) -> None:
    """No two starts train at once, so one that begins before the last sign of the one before has another clock."""
    by_start = _by_start(steps)
    for number in range(1, len(starts)):
        before = [each.ended_unix for each in by_start.get(number - 1, ())]
        early = max([starts[number - 1].ended, *before]) - starts[number].began
        if early > CLOCK_STEP:
            raise ToolkitError(
                f"start {number} in {folder} began {early:,.0f} s before start {number - 1} gave its last sign",
                remedy="the clocks of its nodes differ, or a clock was set back meanwhile: the times tell nothing",
            )


def _lines(path: Path, kind: type[Record]) -> list[Record]:
    """All lines in the order of the file, repeated steps too; a torn last one is left out."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        lines = (line[:-1] for line in file if line.endswith(b"\n"))
        return [_decoded(line, kind, path, number) for number, line in enumerate(lines, start=1)]


def _decoded(content: bytes, kind: type[Known], path: Path, line: int = 0) -> Known:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = f"{path}, line {line}" if line else path
        raise ToolkitError(
            f"{where} is damaged: {error}", remedy="the other files of the run are as they were"
        ) from error
