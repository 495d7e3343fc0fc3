"""The planner's own choice beside the strategies that experts ran: where it differs, and by which parts of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toolkit.calibration import Calibration
from toolkit.search.fastest import Expert, Experts
from toolkit.search.planner import Choice
from toolkit.strategy import describe
from toolkit.validate.job import Job
from toolkit.validate.score import compared_seconds

SLOWER = -1e-9  # a gain below this is a loss
WHY = 3  # parts of a step that are named


def experts(jobs: Sequence[Job], calibration: Calibration, told: Callable[[str], None]) -> dict[str, Any]:
    """Each distinct job that was run, by its fastest published strategy and by all of them, as JSON.

    A job is a model on machines with a workload; its strategies are all that were published. ``no_slower`` counts the
    strategies than which the planner's best of the same family is predicted no slower.
    """
    search = Experts(calibration)
    of_job: dict[bytes, list[tuple[Job, Expert]]] = {}
    timed = [job for job in jobs if compared_seconds(job) is not None]
    for count, job in enumerate(timed):
        found = search.beside(job.model, job.cluster, job.workload, job.strategy)
        key = msgspec.msgpack.encode((job.model, job.cluster, job.workload))
        of_job.setdefault(key, []).append((job, found))
        if count % 100 == 99:
            told(f"{count + 1} of {len(timed)} runs compared")
    every = [found for group in of_job.values() for _, found in group]
    judged = [found for found in every if found.gain is not None]
    return {
        "jobs": len(of_job),
        "strategies": len(every),
        "no_slower": sum((found.gain or 0.0) >= SLOWER for found in judged),
        "slower_with_excuse": sum((found.gain or 0.0) < SLOWER and bool(found.excuse) for found in judged),
        "slower_without_excuse": sum((found.gain or 0.0) < SLOWER and not found.excuse for found in judged),
        "nothing_fits": len(every) - len(judged),
        "nothing_fits_because": dict(Counter(_cause(found) for found in every if found.gain is None).most_common()),
        "list": [_element(group) for group in of_job.values()],
    }


def _cause(found: Expert) -> str:
    """Why the planner has no plan at all of a family that ran, in words that are the same for many runs."""
    if found.refused or not found.outside or found.published.verdict == "no":
        return found.refused or "no strategy fits by the memory estimate"
    return found.outside[0]


def _element(group: list[tuple[Job, Expert]]) -> dict[str, Any]:
    """One job by the strategy that was measured the fastest."""
    job, found = min(group, key=lambda each: compared_seconds(each[0]) or 0.0)
    mine = found.same_family
    return {
        "ids": [each.row.name for each, _ in group],
        "source": job.row.text("source"),
        "model": job.model.name,
        "accelerator": job.cluster.accelerator.name,
        "gpus": job.cluster.num_gpus,
        "global_batch_size": job.workload.global_batch_size,
        "measured_seconds": compared_seconds(job),
        "published": _choice(found.published),
        "chosen": None if mine is None else _choice(mine),
        "chosen_of_any_framework": None if found.any_framework is None else _choice(found.any_framework),
        "gain": found.gain,
        "differs": list(found.differs),
        "why": [] if mine is None else why(found.published, mine),
        "excuse": found.excuse,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "strategy": describe(choice.strategy),
        "predicted_seconds": float(choice.estimate.step.seconds),
        "memory_bytes": float(choice.estimate.memory.total_bytes),
        "verdict": choice.verdict,
    }


def why(published: Choice, mine: Choice) -> list[str]:
    """The parts of a step that differ most: what the other strategy spends more or less on, in seconds."""
    theirs, ours = published.estimate.step.parts, mine.estimate.step.parts
    changes = sorted(((ours[name] - theirs[name], name) for name in ours), key=lambda each: -abs(each[0]))
    least = 0.002 * published.estimate.step.seconds
    return [
        f"{name.removesuffix('_seconds').replace('_', ' ')} {change:+.3g} s"
        for change, name in changes[:WHY]
        if abs(change) > least
    ]
