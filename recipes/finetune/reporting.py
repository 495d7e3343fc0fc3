"""The Trainer's reports to wandb, each in the row of its step (:mod:`recipes.wandb_rows`).

transformers 5.24 leaves the numbering to wandb, which counts log calls from 0 in every process that cannot ask a server
(offline): the second start of a run would write over the history of the first, under one identity. It makes the step
the axis of all that is reported.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers.integrations import WandbCallback

from recipes import resume
from recipes.wandb_guard import Guard
from recipes.wandb_rows import Rows

STEP = "train/global_step"  # the name that the library gives to it in every report
EVENTS = ("on_train_begin", "on_log", "on_save", "on_train_end")  # at which the library's callback calls wandb


class _Numbered:
    """The wandb module, whose ``log`` gives the number of the row of the step that is among the values."""

    def __init__(self, module: Any, rows: Rows) -> None:
        self._module, self._rows = module, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def init(self, *given: Any, **named: Any) -> Any:
        """The newest rows of earlier starts first, under the library's names."""
        run = self._module.init(*given, **named)
        for number, step, evaluation in self._rows.again(run.starting_step):
            values = {
                STEP: step.step,
                "train/loss": step.loss,
                "train/learning_rate": step.learning_rate,
                "train/grad_norm": step.gradient_norm,
            }
            if evaluation is not None:
                values |= {
                    "eval/loss": evaluation.held_out_loss,
                    "eval/tokens": evaluation.tokens,
                    "eval/seconds": evaluation.seconds,
                    "eval/reward_margin": evaluation.reward_margin,
                    "eval/reward_accuracy": evaluation.reward_accuracy,
                }
            run.log({name: value for name, value in values.items() if value is not None}, step=number)
        return run

    def log(self, values: dict[str, Any]) -> None:
        """As the library calls it."""
        step = values.get(STEP)
        self._module.log(values, step=None if step is None else self._rows.of(int(step)))


def number(trainer: Any) -> None:
    """Let the trainer's own callback, if it has one, report in the rows of the steps that the run has made.

    What fails there stops no run (:mod:`recipes.wandb_guard`).
    """
    guard = Guard()
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, WandbCallback) and callback._wandb is not None:
            callback._wandb = _Numbered(callback._wandb, Rows(Path(trainer.args.output_dir)))
            for event in EVENTS:
                setattr(callback, event, guard(getattr(callback, event)))


def identity(start: resume.Start | None) -> dict[str, str]:
    """The run's id at wandb, which goes into every checkpoint, and comes from the one that the run goes on from."""
    saved = start.facts.get("wandb_run_id") if start else None
    if saved:
        os.environ["WANDB_RUN_ID"] = saved
    return {"wandb_run_id": os.environ["WANDB_RUN_ID"]} if "WANDB_RUN_ID" in os.environ else {}
