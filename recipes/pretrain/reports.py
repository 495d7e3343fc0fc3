"""Steps to wandb, where the user asks for it; one run over all restarts (:mod:`recipes.wandb_rows`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from recipes.wandb_guard import Guard
from recipes.wandb_rows import Rows
from toolkit.plan import Plan
from toolkit.record import StepRecord
from toolkit.runtime import checkpoint, durable
from toolkit.runtime.telemetry import wandb_reporting

IDENTITY = "wandb_run_id"


class Reports:
    """Sends each step from rank 0; does nothing on other ranks or where wandb is not asked for.

    The run's id lies beside the telemetry and in every checkpoint: an output directory that lost the one
    takes it from the other.
    """

    def __init__(self, plan: Plan, folder: Path, rank: int) -> None:
        self._run: Any = None
        self._guard = Guard()
        self._id = ""
        self._rows = Rows(folder)
        if rank != 0:
            return
        _restore(folder)
        if not wandb_reporting(folder, os.environ, rank):
            return
        try:
            import wandb
        except ImportError:
            print("note: WANDB_ variables are set and wandb is not installed: nothing is reported", flush=True)
            return
        self._id = os.environ["WANDB_RUN_ID"]
        self._guard(self._begin)(wandb, plan)

    def _begin(self, wandb: Any, plan: Plan) -> None:
        """The newest rows of earlier starts first."""
        settings = {"contract": plan.contract, "strategy": plan.strategy, "model": plan.model, "recipe": plan.recipe}
        project = os.environ.get("WANDB_PROJECT", "pretrain")
        self._run = wandb.init(project=project, name=plan.name, config=msgspec.to_builtins(settings))
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        for number, step, evaluation in self._rows.again(self._run.starting_step):
            values = _values(step) | ({"held_out_loss": evaluation.held_out_loss} if evaluation else {})
            self._run.log({"step": step.step} | values, step=number)

    def step(self, record: StepRecord) -> None:
        """One optimizer step."""
        self.log(record.step, _values(record))

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Other figures of a step."""
        if self._run is not None:
            self._guard(self._run.log)({"step": step} | values, step=self._rows.of(step))

    def identity(self) -> dict[str, str]:
        """What a checkpoint records of the run."""
        return {IDENTITY: self._id} if self._id else {}

    def close(self) -> None:
        """No more steps will follow."""
        if self._run is not None:
            self._guard(self._run.finish)()


def _values(record: StepRecord) -> dict[str, Any]:
    values = msgspec.to_builtins(record)
    return {name: value for name, value in values.items() if value is not None and name != "step"}


def _restore(folder: Path) -> None:
    whole = checkpoint.complete(folder)
    found = checkpoint.facts(whole[-1]).get(IDENTITY) if whole else None
    if found and not (folder / IDENTITY).exists():
        durable.replace(folder / IDENTITY, str(found).encode())
