"""Tells the watchdog in which section of the Trainer's loop this rank is, and the ranks which of them falls behind."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recipes.stragglers import StragglerWatch
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


class TellStragglers(TrainerCallback):
    """After the step has been written down; ``clock`` is what has timed it."""

    def __init__(self, watch: StragglerWatch, record: Any) -> None:
        self.watch, self.record = watch, record

    def attach(self, trainer: Any) -> None:
        """From now on this trainer's batches and forward passes are timed."""
        own, read = self.watch.own, trainer.get_batch_samples

        def reading(batches: Any, *more: Any) -> Any:
            return read(own.reads(batches), *more)

        def begins(module: Any, *_: Any) -> None:
            if module.training:
                own.begin_forward()

        trainer.get_batch_samples = reading
        if self.watch.apart:
            trainer.model.register_forward_pre_hook(begins)
            trainer.model.register_forward_hook(own.end_forward)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """The loss has been read from the device."""
        if logs is not None and "loss" in logs:
            self.watch.step(state.global_step, self.record.seconds)
