"""An evaluation ends at its next batch where a rank has been asked to stop: a job does not wait for its end.

All ranks agree before each batch, as after each step (toolkit.runtime.signals), so all leave it at the same one. What
was computed is thrown away; the next start makes it before its first step (:func:`left_out`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from toolkit.runtime.telemetry import read_evaluations

T = TypeVar("T")


class Interrupted(Exception):
    """All ranks leave this evaluation here."""


def left_out(step: int, last: int, every: int, folder: Path) -> bool:
    """Whether the evaluation after ``step``, where a start begins, was due and is missing; the last is made anyway."""
    due = every > 0 and step < last and step % every == 0
    return due and all(each.step != step for each in read_evaluations(folder))


def until_asked(trainer: Any, batches: Iterable[T]) -> Iterator[T]:
    """The batches; raises Interrupted before one of them on all ranks once a stop is agreed on.

    Before the first step of a run a request ends each rank at once, without this. The watchdog sees each batch.
    """
    step, stop = trainer.state.global_step, trainer.stop
    for number, batch in enumerate(batches):
        if number and trainer.watchdog is not None:
            trainer.watchdog.went_on("evaluation")
        if step > 0 and stop is not None and stop.agreed(trainer.args.device, step):
            raise Interrupted
        yield batch


def interruptible(evaluate: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The evaluation of a trainer; it has no metrics where it was interrupted, and the callbacks hear of its end."""

    @functools.wraps(evaluate)
    def outer(trainer: Any, *positional: Any, **keywords: Any) -> dict[str, Any]:
        training = trainer.model_wrapped.training
        try:
            return evaluate(trainer, *positional, **keywords)
        except Interrupted:
            trainer.model_wrapped.train(training)
            trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, None)
            return {}

    return outer
