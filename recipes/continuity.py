"""What must hold when a run goes on: its states are those of the step it was saved after, and its loss goes on too.

Frameworks warn where they find nothing to load, or say nothing: the Trainer leaves out an optimizer whose file is
missing, and a scheduler that starts anew warms up once more. Here that ends the run before it has taken a step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from toolkit.errors import Problems, ToolkitError
from toolkit.record import StepRecord

RECENT = 20  # losses that the first one after a restart is compared with
DEVIATIONS, LEAST = 6.0, 0.1  # of them, and of their mean: how far above it the first may lie


def require_restored(step: int, optimizer_steps: Iterable[int | None], scheduler_step: int | None) -> None:
    """Raise ToolkitError unless optimizer and schedule stand at ``step``.

    ``optimizer_steps`` are the counts of steps in the optimizer's states; of one that counts none there are none. The
    optimizer may have taken fewer steps than the run only under fp16, which skips those that overflow: the caller
    gives None for what it cannot tell.
    """
    counted = {count for count in optimizer_steps if count is not None}
    with Problems() as problems:
        if counted - {step}:
            problems.add(
                f"the optimizer's states are those after {', '.join(map(str, sorted(counted)))} steps, the checkpoint"
                f" was saved after {step}",
                "they have not been restored: choose an older checkpoint, or start anew in another --output-dir",
            )
        if scheduler_step is not None and scheduler_step != step:
            problems.add(
                f"the learning rate's schedule stands at step {scheduler_step}, the checkpoint was saved after {step}",
                "its state has not been restored, and it would warm up anew: choose an older checkpoint",
            )


def require_rate(step: int, rate: float, wanted: float) -> None:
    """Raise ToolkitError where a step was made at another learning rate than the contract's schedule has there."""
    if not math.isclose(rate, wanted, rel_tol=1e-6, abs_tol=1e-15):
        raise ToolkitError(
            f"step {step} was made with learning rate {rate:.6g}, the contract's schedule has {wanted:.6g} there",
            remedy="the schedule is stepped more or less than once a step, or was not restored: this is a fault of the"
            " program, and nothing has been saved since",
        )


def jump(before: list[StepRecord], first: StepRecord, vocabulary: int) -> str:
    """A sentence where the first loss after a restart is not one that goes on from those before it, else empty.

    Compared with the mean of the last 20, and six of their standard deviations or a tenth above it. Raises ToolkitError
    for one that is nearer to that of an untrained model, ``ln V``, while the run was well below it.
    """
    known = [each.loss for each in before if each.step < first.step and each.loss is not None][-RECENT:]
    if not known or first.loss is None:
        return ""
    mean, spread = statistics.fmean(known), statistics.pstdev(known)
    if first.loss <= mean + max(DEVIATIONS * spread, LEAST * abs(mean)):
        return ""
    untrained = math.log(vocabulary)
    said = f"step {first.step}, the first after the restart, has loss {first.loss:.4f}; the {len(known)} before"
    said += f" {mean:.4f} +- {spread:.4f}"
    if mean < 0.75 * untrained and first.loss > (mean + untrained) / 2.0:
        raise ToolkitError(
            f"{said}, an untrained model {untrained:.4f}: its weights have not been restored",
            remedy="choose an older checkpoint; toolkit ckpt verify names damaged files",
        )
    return f"{said}: look whether weights, optimizer and data are the run's own"


def optimizer_steps(optimizer: Any) -> list[int]:
    """Counts of steps in the states of a torch optimizer, under whatever wraps it; per group, or per parameter."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    states = list(getattr(optimizer, "state", {}).values())
    found = [state["step"] for state in states if isinstance(state, dict) and "step" in state]
    if not found:
        found = [group["step"] for group in getattr(optimizer, "param_groups", ()) if "step" in group]
    return [int(count) for count in found]
