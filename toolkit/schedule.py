"""The learning rate and the number of steps of a contract: one formula for every program and framework.

DeepSpeed's, Transformers' and Megatron's own schedulers differ in how they warm up and in where they
end, and some step once per process. A recipe that moves to another framework must not change
its learning rate, so the programs and the planner take it from here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from toolkit.recipe import CHOICES, Contract, decay_steps, planned_steps, warmup_steps

SCHEDULES = CHOICES["schedule"]


def learning_rate(step: int, total_steps: int, contract: Contract) -> float:
    """Learning rate of optimizer step ``step`` (the first is 0), with peak ``p``, minimum ``m``, warm-up ``w``.

        step < w:  p * step / w
        cosine:    m + (p - m) * (1 + cos(pi * x)) / 2      x = (step - w) / (total - w), held at 1 after the end
        linear:    m + (p - m) * (1 - x)
        constant:  p
        wsd:       p, and over the last d steps m + (p - m) * (1 - x)    x = (step - (total - d)) / d

    The same as ``cosine_with_min_lr``, ``linear`` and ``constant_with_warmup`` of transformers 5.24
    (optimization.py); its ``linear`` has no minimum. ``wsd`` (warm-up, stable, decay) is that of megatron-core
    0.16.1 with ``--lr-wsd-decay-style linear`` (optimizer_param_scheduler.py).
    """
    peak, minimum, warmup = contract.learning_rate, contract.min_learning_rate, warmup_steps(contract, total_steps)
    if step < warmup:
        return peak * step / warmup
    if contract.schedule == "constant":
        return peak
    since = warmup
    if contract.schedule == "wsd":
        since = max(warmup, total_steps - decay_steps(contract, total_steps))
    progress = min(1.0, max(0.0, (step - since) / max(1, total_steps - since)))
    left = (1.0 + math.cos(math.pi * progress)) / 2.0 if contract.schedule == "cosine" else 1.0 - progress
    return minimum + (peak - minimum) * left


def total_steps(contract: Contract, sequences: int) -> int:
    """Optimizer steps of the whole run: as given, or enough for the tokens, or for the epochs, rounded up.

    ``sequences`` is the number of training sequences in one epoch.
    """
    return planned_steps(contract) or max(1, math.ceil(contract.epochs * sequences / contract.global_batch_size))


class Point(NamedTuple):
    """The learning rate of one optimizer step, counted from 1, and what is there."""

    where: str
    step: int
    rate: float


def points(contract: Contract, total_steps: int, advance: int = 1) -> tuple[Point, ...]:
    """The learning rate of the first two steps, where the warm-up ends, half-way, of the last step, and after it.

    Steps are counted from 1, as ``steps.jsonl`` and the screen have them, and step ``s`` has ``learning_rate(s - 1)``:
    the first one of a warm-up has none, the last one of a decay not yet the minimum, which is what ``end`` tells, the
    rate that one more step would have. ``advance`` is by how much the scheduler really moves in an optimizer step: 1 in
    both training programs here; the number of processes for one that accelerate has prepared with
    ``split_batches=False``.
    """
    warmup = warmup_steps(contract, total_steps)
    places = {1: "first", 2: "second"}
    if warmup:
        places |= {warmup + 1: "warm-up ends"}
    places = {total_steps // 2: "half"} | places
    places = {step: where for step, where in places.items() if 0 < step < total_steps}
    places |= {total_steps: "last", total_steps + 1: "end"}
    return tuple(
        Point(places[step], step, learning_rate(advance * (step - 1), total_steps, contract)) for step in sorted(places)
    )


def used_up_at_step(total_steps: int, processes: int, split_batches: bool = False) -> int:
    """The optimizer step at which a scheduler made for ``total_steps`` has ended that accelerate 1.15 has prepared.

        ceil(total / processes)

    ``AcceleratedScheduler.step`` (scheduler.py) steps the schedule once for each process, unless the batches are
    split: it expects a schedule counted in the batches of one process. A cosine then starts again or stays at its
    minimum for the rest.
    """
    return total_steps if split_batches else math.ceil(total_steps / processes)


def ends_at_minimum(contract: Contract, total_steps: int, advance: int = 1) -> bool:
    """Whether the rate falls to its minimum at the end of the run, and not long before it.

    True of a constant schedule, which has no minimum to reach.
    """
    if contract.schedule == "constant":
        return True
    last, span = advance * total_steps, max(1, total_steps - warmup_steps(contract, total_steps))
    at_end = math.isclose(
        learning_rate(last, total_steps, contract), contract.min_learning_rate, rel_tol=1e-9, abs_tol=1e-300
    )
    return at_end and last - total_steps < span / 2
