"""The same job on several numbers of GPUs: the best plan of each, what more GPUs are worth, and the knee.

The global batch stays, as the contract asks: the same steps are made everywhere, only faster or cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.calibration import Calibration
from toolkit.estimate.speedup import benefit_per_cost, scaling_efficiency, speed_up
from toolkit.search import pareto
from toolkit.search.planner import Choice, SearchResult, least_memory, search
from toolkit.search.request import Request


@dataclass(frozen=True)
class Entry:
    """One count. Without ``choice`` nothing fits, and ``nearest`` is the legal candidate that needs least, if any.

    ``speed_up`` and ``efficiency`` are against the smallest count that fits; ``marginal`` is the gain in speed since
    the count before over the gain in GPUs: what the added GPUs reach of those that were there.
    """

    request: Request
    result: SearchResult
    front: tuple[pareto.Point, ...]
    nearest: Choice | None = None
    speed_up: float | None = None
    efficiency: float | None = None
    marginal: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.request.cluster.num_gpus

    @property
    def choice(self) -> Choice | None:
        """The plan that ranks first at this count, as without a sweep."""
        return self.result.choices[0] if self.result.choices else None


@dataclass(frozen=True)
class Sweep:
    """Every count, rising. ``knee`` is None where fewer than two fit, the other counts where none does."""

    entries: tuple[Entry, ...]
    front: tuple[pareto.Point, ...]
    knee: int | None
    fastest: int | None
    cheapest: int | None
    leanest: int | None

    @property
    def fitting(self) -> tuple[Entry, ...]:
        """Counts on which a plan fits."""
        return tuple(entry for entry in self.entries if entry.choice is not None)


def sweep(requests: Sequence[Request], calibration: Calibration) -> Sweep:
    """Search every request (rising in GPUs, the same workload) and compare what each does best."""
    entries = []
    for request in requests:
        result = search(request, calibration, top=1)
        nearest = None if result.choices else least_memory(request, calibration, result)
        front = tuple(pareto.front(request, result))
        result.blocks.clear()  # columns of every candidate, which nothing below reads
        entries.append(Entry(request, result, front, nearest))
    return compared(entries)


def compared(entries: Sequence[Entry]) -> Sweep:
    """Speed-up, efficiency, knee and front of counts that were searched."""
    done: list[Entry] = []
    before: Entry | None = None
    first: Entry | None = None
    for entry in entries:
        if entry.choice is None:
            done.append(entry)
            continue
        first = first or entry
        speed = float(speed_up(_seconds(first), _seconds(entry)))
        efficiency = float(scaling_efficiency(speed, first.gpus, entry.gpus))
        marginal = None
        if before is not None and before.speed_up is not None and entry.gpus > before.gpus:
            gain = speed / before.speed_up - 1.0
            marginal = gain / (entry.gpus / before.gpus - 1.0)
        before = replace(entry, speed_up=speed, efficiency=efficiency, marginal=marginal)
        done.append(before)
    fits = [entry for entry in done if entry.choice is not None]
    front = pareto.merged([list(entry.front) for entry in done])

    def least(key: Callable[[Entry], Any]) -> int | None:
        return min(fits, key=key).gpus if fits else None

    return Sweep(
        entries=tuple(done),
        front=tuple(front),
        knee=least(lambda e: (-benefit_per_cost(e.efficiency, e.speed_up), e.gpus)) if len(fits) > 1 else None,
        fastest=least(lambda e: (_seconds(e), e.gpus)),
        cheapest=least(lambda e: (e.gpus * _seconds(e), e.gpus)),
        leanest=least(lambda e: (_total_bytes(e), e.gpus)),
    )


def _seconds(entry: Entry) -> float:
    """Of a step of the plan that ranks first."""
    return float(entry.choice.estimate.step.seconds) if entry.choice else float("inf")


def _total_bytes(entry: Entry) -> float:
    """Of the fullest GPU of the plan that ranks first."""
    return float(entry.choice.estimate.memory.total_bytes) if entry.choice else float("inf")
