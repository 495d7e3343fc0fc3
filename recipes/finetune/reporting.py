"""The Trainer's reports to wandb, each under the step of the run.

transformers 5.24 leaves the numbering to wandb, which counts log calls from 0 in every process that cannot ask a server
(offline): the second start of a run would write over the history of the first, under one identity. With the step given,
a step that is done again after a kill comes under the number that it had, and an evaluation in the row of its step.
"""

from __future__ import annotations

from typing import Any

from transformers.integrations import WandbCallback

STEP = "train/global_step"  # the name that the library gives to it in every report


class _Numbered:
    """The wandb module, whose ``log`` gives the step that is among the values."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def log(self, values: dict[str, Any]) -> None:
        """As the library calls it."""
        self._module.log(values, step=values.get(STEP))


def number(trainer: Any) -> None:
    """Let the trainer's own callback, if it has one, report under the steps of the run."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, WandbCallback) and callback._wandb is not None:
            callback._wandb = _Numbered(callback._wandb)
