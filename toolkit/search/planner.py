"""The search: lay out candidates, drop the illegal and the too large, time the rest, rank.

Memory is evaluated before time, so only what fits is timed. The candidates of a framework are
evaluated as columns, many at once, by the same formulas that evaluate a single plan.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from toolkit.calibration import Calibration
from toolkit.estimate.communication import communication
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.host import host_memory
from toolkit.estimate.memory import memory
from toolkit.estimate.step import step
from toolkit.estimate.verdict import verdict
from toolkit.estimates import VERDICTS, Estimate
from toolkit.search import rank
from toolkit.search.candidates import spaces
from toolkit.search.constraints import HOST_MEMORY, MEMORY, Sieve
from toolkit.search.crossing import grow
from toolkit.search.request import Request
from toolkit.strategy import Strategy

NO = VERDICTS.index("no")


@dataclass(frozen=True)
class Choice:
    """A scalar strategy with its estimate."""

    strategy: Strategy
    estimate: Estimate
    verdict: str
    limit_bytes: float
    host_limit_bytes: float


@dataclass
class Block:
    """Legal candidates of one framework. ``seconds`` is infinite where memory does not fit."""

    strategy: Strategy
    total_bytes: Any
    verdict: Any
    seconds: Any

    @property
    def feasible(self) -> int:
        """Rows that fit."""
        import numpy

        return int(numpy.isfinite(self.seconds).sum())


@dataclass
class SearchResult:
    """What was looked at, what was removed and why, and what is left, best first."""

    total: int = 0
    feasible: int = 0
    seconds: float = 0.0
    eliminated: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)

    @cached_property
    def ladder(self) -> list[rank.Rung]:
        """What every rung can do for the request."""
        return rank.ladder(self.blocks)


def search(request: Request, calibration: Calibration, top: int = 10) -> SearchResult:
    """Rank every strategy for a request. ``result.choices`` is empty when nothing fits.

    The best micro batch, recomputation and interleaving of each layout (framework, ZeRO stage,
    offload, degrees) is one choice, so that ``top`` choices are ``top`` different layouts.
    """
    started = time.perf_counter()
    result = SearchResult()
    for space in spaces(request):
        result.total += space.size
        for legal in grow(request, space, Sieve(request, space.framework, result.eliminated)):
            block = evaluated(request, calibration, legal, result.eliminated)
            result.feasible += block.feasible
            result.blocks.append(block)
    for block, row in rank.order(request, result.blocks)[:top]:
        result.choices.append(choose(request, calibration, block.strategy.take(row)))
    result.seconds = time.perf_counter() - started
    return result


def choose(request: Request, calibration: Calibration, strategy: Strategy) -> Choice:
    """Evaluate one scalar strategy; what overflows the host does not fit, as in the search."""
    estimate = evaluate(request.model, request.cluster, request.workload, strategy, calibration)
    limit, host_limit = request.cluster.accelerator.memory_bytes, request.cluster.host_memory_bytes
    overflows = 0.0 < host_limit < estimate.host_memory.total_bytes
    return Choice(
        strategy=strategy,
        estimate=estimate,
        verdict=VERDICTS[NO if overflows else int(verdict(estimate.memory.total_bytes, limit))],
        limit_bytes=limit,
        host_limit_bytes=host_limit,
    )


def least_memory(request: Request, calibration: Calibration, result: SearchResult) -> Choice | None:
    """The legal candidate that needs the least memory per GPU: the nearest miss when nothing fits."""
    best: tuple[float, Strategy] | None = None
    for block in result.blocks:
        if len(block.total_bytes):
            row = int(block.total_bytes.argmin())
            if best is None or block.total_bytes[row] < best[0]:
                best = (float(block.total_bytes[row]), block.strategy.take(row))
    return choose(request, calibration, best[1]) if best else None


def evaluated(request: Request, calibration: Calibration, legal: Strategy, eliminated: dict[str, int]) -> Block:
    """Memory of every row, and the time of those that fit; ``eliminated`` counts those that do not."""
    import numpy

    rows = len(legal.dp)  # type: ignore[arg-type]
    arguments = (request.model, request.cluster, request.workload, legal, calibration)
    total_bytes = memory(*arguments).total_bytes + numpy.zeros(rows)
    verdicts = verdict(total_bytes, request.cluster.accelerator.memory_bytes)
    fits = verdicts != NO
    _count(eliminated, MEMORY, rows - int(fits.sum()))
    host_limit = request.cluster.host_memory_bytes
    if host_limit:
        host_fits = host_memory(*arguments).total_bytes + numpy.zeros(rows) <= host_limit
        _count(eliminated, HOST_MEMORY, int((fits & ~host_fits).sum()))
        fits &= host_fits
    seconds = numpy.full(rows, numpy.inf)
    if fits.any():
        fitting = legal.select(fits)
        parts = communication(request.model, request.cluster, request.workload, fitting, calibration)
        seconds[fits] = step(request.model, request.cluster, request.workload, fitting, parts, calibration).seconds
    return Block(legal, total_bytes, verdicts, seconds)


def _count(eliminated: dict[str, int], name: str, removed: int) -> None:
    if removed:
        eliminated[name] = eliminated.get(name, 0) + removed
