"""Steps to wandb, where the user asks for it; one run over all restarts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

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
        self._id = ""
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
        settings = {"contract": plan.contract, "strategy": plan.strategy, "model": plan.model, "recipe": plan.recipe}
        project = os.environ.get("WANDB_PROJECT", "pretrain")
        try:
            self._run = wandb.init(project=project, name=plan.name, config=msgspec.to_builtins(settings))
        except wandb.Error as error:  # no network or a wrong key is no reason not to train
            print(f"note: nothing is reported to wandb: {error}", flush=True)

    def step(self, record: StepRecord) -> None:
        """One optimizer step."""
        values = msgspec.to_builtins(record)
        self.log(values.pop("step"), {name: value for name, value in values.items() if value is not None})

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Other figures of a step."""
        if self._run is not None:
            self._run.log(values, step=step)

    def identity(self) -> dict[str, str]:
        """What a checkpoint records of the run."""
        return {IDENTITY: self._id} if self._id else {}

    def close(self) -> None:
        """No more steps will follow."""
        if self._run is not None:
            self._run.finish()


def _restore(folder: Path) -> None:
    whole = checkpoint.complete(folder)
    found = checkpoint.facts(whole[-1]).get(IDENTITY) if whole else None
    if found and not (folder / IDENTITY).exists():
        durable.replace(folder / IDENTITY, str(found).encode())
