"""Tells the watchdog in which section of the Trainer's loop this rank is."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from toolkit.runtime.watchdog import IDLE, Watchdog


class WatchSections(TrainerCallback):
    """The last of the callbacks, so that the others have said by then whether the Trainer evaluates or saves.

    ``data`` is from the end of a step to the beginning of the next: the Trainer reads its batches there.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        self.watchdog = watchdog

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Forward, backward and update."""
        self.watchdog.enter("step", state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The Trainer evaluates, then saves, then reads."""
        self._next(control.should_evaluate, control.should_save, state.global_step)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Before the first step it is part of the start."""
        if self.watchdog.place().section != "start-up":
            self._next(False, control.should_save, state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The save is over."""
        self._next(False, False, state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """What follows is not watched."""
        self.watchdog.enter(IDLE)

    def _next(self, evaluates: bool, saves: bool, step: int) -> None:
        self.watchdog.enter(*("evaluation", step) if evaluates else ("save", step) if saves else ("data", step + 1))
