"""The search: lay out candidates, drop the illegal and the too large, time the rest, rank.

Memory is evaluated before time, so only what fits is timed. The candidates of a framework are
evaluated as columns, many at once, by the same formulas that evaluate a single plan.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

from toolkit.calibration import Calibration
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.verdict import verdict
from toolkit.estimates import VERDICTS, Estimate
from toolkit.search import rank
from toolkit.search.blocks import NO, Block, Tally, blocks
from toolkit.search.request import Request
from toolkit.strategy import Strategy

__all__ = ["Block", "Choice", "SearchResult", "choose", "least_memory", "search"]


@dataclass(frozen=True)
class Choice:
    """A scalar strategy with its estimate."""

    strategy: Strategy
    estimate: Estimate
    verdict: str
    limit_bytes: float
    host_limit_bytes: float


@dataclass
class SearchResult(Tally):
    """What was looked at, what was removed and why, and what is left, best first."""

    seconds: float = 0.0
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
