"""Steps that are made again keep their values at wandb: real runs of it, offline, read back from its own log."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.wandb_rows import Rows
from tests import wandb_runs
from toolkit.record import StepRecord
from toolkit.runtime.telemetry import STEPS

LINE = {"step": 0, "seconds": 1.0, "tokens": 1, "loss": 2.0, "learning_rate": 0.1}


@given(moves=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.booleans()), min_size=1, max_size=8))
def test_numbers_ascend_over_starts_and_setbacks(
    moves: list[tuple[int, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Some steps on, some back, in the same process or in a new one; the last row made once more is the same row."""
    folder = tmp_path_factory.mktemp("run")
    start = 0
    numbers, steps, step, rows = list[int](), list[int](), 0, Rows(folder)
    for on, back, killed in moves:
        for _ in range(on):
            step += 1
            numbers.append(rows.of(step))
            steps.append(step)
            assert rows.of(step) == numbers[-1] >= step  # an evaluation goes into the row of its step
            with (folder / STEPS).open("a") as file:
                file.write(json.dumps(LINE | {"step": step, "restart": start}) + "\n")
        step = max(0, step - back)
        start += killed
        rows = Rows(folder) if killed else rows
        if killed:
            again = rows.again(0)
            assert [row.number for row in again] == list(dict.fromkeys(numbers))
            last = dict(zip(numbers, steps, strict=True))
            assert [row.step.step for row in again] == [last[number] for number in sorted(last)]
    assert all(
        a < b or (a == b and steps[at] == steps[at + 1]) for at, (a, b) in enumerate(itertools.pairwise(numbers))
    )


def test_without_a_step_made_twice_numbers_are_steps(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    assert [rows.of(step) for step in (1, 2, 2, 3)] == [1, 2, 2, 3]
    (tmp_path / STEPS).write_text("".join(json.dumps(LINE | {"step": step}) + "\n" for step in (7, 8, 7, 8)))
    assert [row.number for row in Rows(tmp_path).again(8)] == [8, 9, 10]  # the first lines are lost
    assert [Rows(tmp_path).of(9), Rows(tmp_path).of(7)] == [11, 11]


@pytest.mark.slow
def test_a_run_that_goes_back_and_one_that_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    from recipes.pretrain.reports import Reports
    from tests.recipes.test_pretrain import pretrain_plan

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("WANDB_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SERVICE"):
        monkeypatch.setenv(name, "")  # set by the first start; gone again after the test
        monkeypatch.delenv(name)
    final: dict[int, float] = {}
    loss = 9.0
    for start, steps in enumerate(
        ((1, 2, 3, 4, 3, 4, 5), (5, 6))
    ):  # back to step 2 in the first one, which is killed after step 5
        reports = Reports(pretrain_plan(), tmp_path, 0)
        for step in steps:
            loss -= 0.1
            final[step] = loss
            made = StepRecord(step=step, seconds=1.0, tokens=1, loss=loss, learning_rate=0.1, restart=start)
            with (tmp_path / STEPS).open("ab") as file:
                file.write(msgspec.json.encode(made) + b"\n")
            reports.step(made)
            reports.log(step, {"held_out_loss": loss + 1.0})
        reports.close()
    wandb.teardown()  # as at the end of a process: its sender writes the last rows until then
    rows = [
        row
        for folder in sorted((tmp_path / "wandb").glob("offline-run-*"))
        for file in folder.glob("*.wandb")
        for row in wandb_runs.history(file)
    ]
    first, second = [1, 2, 3, 4, 3, 4, 5], [5, 6]  # the second start sends those of the first once more
    assert [number for number, _ in rows] == [*range(1, 8), *range(1, 10)]
    assert [values["step"] for _, values in rows] == first + first + second
    assert {values["step"]: values["loss"] for _, values in rows} == final
    own = rows[:7] + rows[-2:]
    assert all(values["held_out_loss"] == values["loss"] + 1.0 for _, values in own)
