"""The Pareto front: plans of which none is at least as good in time, memory and GPUs, and better in one.

Cost in GPU-hours is GPUs times time: a plan that is worse in neither of those is not dearer either, so that the
cheapest plan is always on the front.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolkit.estimates import VERDICTS
from toolkit.search.planner import SearchResult
from toolkit.search.request import Request
from toolkit.strategy import Strategy


@dataclass(frozen=True, eq=False)
class Point:
    """One plan of the front. ``seconds`` are of a step, ``total_bytes`` of the fullest GPU."""

    request: Request
    strategy: Strategy
    gpus: int
    seconds: float
    total_bytes: float
    verdict: str

    @property
    def gpu_seconds(self) -> float:
        """What one step costs."""
        return self.gpus * self.seconds


def nondominated(seconds: Any, total_bytes: Any) -> Any:
    """Indices of the rows that no other row beats in both columns, fastest first; of equal rows one stays.

    In order of time, a row is on the front if it needs less than every faster one: one sort and a running minimum.
    """
    import numpy

    fastest_first = numpy.lexsort((total_bytes, seconds))
    needed = total_bytes[fastest_first]
    least_before = numpy.concatenate(([numpy.inf], numpy.minimum.accumulate(needed)[:-1]))
    return fastest_first[needed < least_before]


def front(request: Request, result: SearchResult) -> list[Point]:
    """The non-dominated plans of one search, fastest first."""
    import numpy

    blocks = [(block, nondominated(block.seconds, block.total_bytes)) for block in result.blocks if len(block.seconds)]
    if not blocks:
        return []
    seconds = numpy.concatenate([block.seconds[rows] for block, rows in blocks])
    total_bytes = numpy.concatenate([block.total_bytes[rows] for block, rows in blocks])
    owner = numpy.repeat(numpy.arange(len(blocks)), [len(rows) for _, rows in blocks])
    row = numpy.concatenate([rows for _, rows in blocks])
    found = []
    for index in nondominated(seconds, total_bytes):
        if numpy.isfinite(seconds[index]):
            block = blocks[owner[index]][0]
            found.append(
                Point(
                    request,
                    block.strategy.take(int(row[index])),
                    request.cluster.num_gpus,
                    float(seconds[index]),
                    float(total_bytes[index]),
                    VERDICTS[int(block.verdict[row[index]])],
                )
            )
    return found


def merged(fronts: list[list[Point]]) -> list[Point]:
    """The front over several GPU counts: what takes more GPUs stays only where it is faster or needs less memory."""
    import numpy

    kept: list[Point] = []
    for points in sorted((each for each in fronts if each), key=lambda each: each[0].gpus):
        # those already kept have no more GPUs: a new point stays where none of them is as fast and as small
        if kept:
            seconds = numpy.array([each.seconds for each in kept])
            total_bytes = numpy.array([each.total_bytes for each in kept])
            rows = nondominated(seconds, total_bytes)
            seconds, total_bytes = seconds[rows], total_bytes[rows]
            place = numpy.searchsorted(seconds, [each.seconds for each in points], side="right") - 1
            points = [
                each
                for each, index in zip(points, place, strict=True)
                if index < 0 or total_bytes[index] > each.total_bytes
            ]
        kept += points
    return kept
