"""The search: lay out candidates, drop the illegal and the too large, time the rest, rank.

Memory is evaluated before time, so only what fits is timed. The candidates of a framework are
evaluated as columns, many at once, by the same formulas that evaluate a single plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from toolkit.calibration import Calibration
from toolkit.estimate.communication import communication
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.host import host_memory
from toolkit.estimate.memory import memory
from toolkit.estimate.step import step
from toolkit.estimate.verdict import COMFORT, verdict
from toolkit.estimates import VERDICTS, Estimate
from toolkit.search import rank
from toolkit.search.candidates import spaces
from toolkit.search.constraints import HOST_MEMORY, MEMORY, Sieve
from toolkit.search.crossing import grow
from toolkit.search.partial import at_depth, depths, fewest
from toolkit.search.request import Request
from toolkit.strategy import RECOMPUTE, Strategy

NONE, FULL = RECOMPUTE.index("none"), RECOMPUTE.index("full")
FITS, NO = VERDICTS.index("fits"), VERDICTS.index("no")


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
    for block in blocks(request, calibration, result):
        result.blocks.append(block)
    for block, row in rank.order(request, result.blocks, top):
        result.choices.append(choose(request, calibration, block.strategy.take(row)))
    result.seconds = time.perf_counter() - started
    return result


def blocks(request: Request, calibration: Calibration, tally: SearchResult) -> Iterator[Block]:
    """Every legal candidate, evaluated, in blocks; ``tally`` counts them, and those that were eliminated."""
    for space in spaces(request):
        tally.total += space.size
        for legal in grow(request, space, Sieve(request, space, tally.eliminated)):
            block = _evaluated(request, calibration, legal, tally)
            yield block
            if space.partial:
                yield from _some_recomputed(request, calibration, block, tally)


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


def _evaluated(request: Request, calibration: Calibration, legal: Strategy, tally: SearchResult) -> Block:
    """Memory of every row, and the time of those that fit."""
    rows = len(legal.dp)  # type: ignore[arg-type]
    total_bytes = _total_bytes(request, calibration, legal)
    verdicts = verdict(total_bytes, request.cluster.accelerator.memory_bytes)
    fits = verdicts != NO
    _count(tally.eliminated, MEMORY, rows - int(fits.sum()))
    host_fits = _host_fits(request, calibration, legal)
    if host_fits is not None:
        _count(tally.eliminated, HOST_MEMORY, int((fits & ~host_fits).sum()))
        fits &= host_fits
    tally.feasible += int(fits.sum())
    return Block(legal, total_bytes, verdicts, _seconds(request, calibration, legal, fits))


def _some_recomputed(request: Request, calibration: Calibration, block: Block, tally: SearchResult) -> Iterator[Block]:
    """Rows with some layers recomputed instead of all: the fewest that fit, and the fewest that are tight.

    Where a plan fits without recomputation all numbers fit, and none is worth laying out.
    """
    import numpy

    most = depths(request.model.num_hidden_layers, block.strategy)
    rows = numpy.flatnonzero((block.strategy.recompute == FULL) & (most > 0))
    tally.total += int(most[rows].sum())
    limit = request.cluster.accelerator.memory_bytes
    idle = rows[_fits_without(block, rows)]
    tally.feasible += int(most[idle].sum())
    rows = numpy.setdiff1d(rows, idle, assume_unique=True)
    if not len(rows):
        return
    full, most = block.strategy.select(rows), most[rows]
    host_fits = _host_fits(request, calibration, full)
    if host_fits is not None and not host_fits.all():
        _count(tally.eliminated, HOST_MEMORY, int(most[~host_fits].sum()))
        full, most = full.select(host_fits), most[host_fits]
    limits = (limit, COMFORT * limit)
    tight, fitting = fewest(full, most, lambda some: _total_bytes(request, calibration, some), limits)
    feasible = int(numpy.where(tight > 0, most - tight + 1, 0).sum())
    tally.feasible += feasible
    _count(tally.eliminated, MEMORY, int(most.sum()) - feasible)
    first, second = numpy.flatnonzero(tight), numpy.flatnonzero((fitting > 0) & (fitting != tight))
    if len(first):
        rows = numpy.concatenate((first, second))
        chosen = at_depth(full.select(rows), numpy.concatenate((tight[first], fitting[second])))
        total_bytes = _total_bytes(request, calibration, chosen)
        all_fit = numpy.ones(len(rows), dtype=bool)
        yield Block(chosen, total_bytes, verdict(total_bytes, limit), _seconds(request, calibration, chosen, all_fit))


def _fits_without(block: Block, rows: Any) -> Any:
    """Of rows of full recomputation: whether the same strategy without any fits, as far as the block tells.

    The values of the last axis lie side by side: none, selective, full.
    """
    import numpy

    at = numpy.maximum(rows - (len(RECOMPUTE) - 1), 0)
    recompute: Any = block.strategy.recompute
    beside = (recompute[at] == NONE) & (block.verdict[at] == FITS)
    return beside & numpy.isfinite(block.seconds[at])


def _total_bytes(request: Request, calibration: Calibration, rows: Strategy) -> Any:
    import numpy

    needed = memory(request.model, request.cluster, request.workload, rows, calibration).total_bytes
    return needed + numpy.zeros(len(rows.dp))  # type: ignore[arg-type]


def _host_fits(request: Request, calibration: Calibration, rows: Strategy) -> Any:
    """Whether each row fits the host; None where the host's memory is not known."""
    import numpy

    limit = request.cluster.host_memory_bytes
    if not limit:
        return None
    needed = host_memory(request.model, request.cluster, request.workload, rows, calibration).total_bytes
    return needed + numpy.zeros(len(rows.dp)) <= limit  # type: ignore[arg-type]


def _seconds(request: Request, calibration: Calibration, rows: Strategy, timed: Any) -> Any:
    """Seconds of a step of the ``timed`` rows, infinite for the others."""
    import numpy

    seconds = numpy.full(len(timed), numpy.inf)
    if timed.any():
        chosen = rows if timed.all() else rows.select(timed)
        parts = communication(request.model, request.cluster, request.workload, chosen, calibration)
        seconds[timed] = step(request.model, request.cluster, request.workload, chosen, parts, calibration).seconds
    return seconds


def _count(eliminated: dict[str, int], name: str, removed: int) -> None:
    if removed:
        eliminated[name] = eliminated.get(name, 0) + removed
