"""Under which number a step goes to wandb: rows are numbered in the order in which steps were made, over all starts.

wandb takes rows in ascending order only: what comes under a number that it has, or under a lower one, is dropped with a
warning. But steps are made again, after a kill, and within a process that goes back to leave a batch out; and a process
that can ask no server (offline) begins to count at 0. So a row has the number of its line in ``steps.jsonl``, which
keeps every step ever made; where none was made twice that is the step itself. The step is a value of the row and its
axis, and of rows with one step the last one holds, as in ``steps.jsonl``.

A process that is killed takes with it what wandb (0.31) had not written: offline up to a block of 32 KiB (some 60
rows), online what was on its way. So a start sends the newest rows of earlier ones again, as far as it does not know
that the server has them; where it has, under the same number, nothing changes.

Left out: truncating the history at the server (``resume_from``), which not every server can, and none does offline.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from toolkit.record import EvaluationRecord, StepRecord
from toolkit.runtime.telemetry import STEPS, read_evaluations, read_lines

AGAIN = 500  # rows, at 0.3 ms each


class Row(NamedTuple):
    """What earlier starts have reported under a number."""

    number: int
    step: StepRecord
    evaluation: EvaluationRecord | None


class Rows:
    """One for a start, made before its first step."""

    def __init__(self, folder: Path) -> None:
        self._number, self._step = 0, -1
        self._made: dict[int, StepRecord] = {}
        self._folder = folder
        start = 0
        for record in read_lines(folder) if (folder / STEPS).exists() else ():
            if record.restart != start:
                start, self._step = record.restart, -1
            self._made[self.of(record.step)] = record
        self._step = -1

    def of(self, step: int) -> int:
        """The number of this step's row, the same until another comes; where lines are lost, at least the step."""
        if step != self._step:
            self._number, self._step = max(self._number + 1, step), step
        return self._number

    def again(self, known: int) -> list[Row]:
        """The newest rows of earlier starts, from number ``known`` on; an evaluation is in the last row of its step."""
        newest = {record.step: number for number, record in self._made.items()}
        evaluations = {newest.get(each.step, 0): each for each in read_evaluations(self._folder)}
        chosen = [number for number in self._made if number >= known][-AGAIN:]
        return [Row(number, self._made[number], evaluations.get(number)) for number in chosen]
