"""The search the simple way, as an oracle: the whole product in memory, and every rule on every row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolkit.search.candidates import spaces
from toolkit.search.crossing import grow, ways
from toolkit.search.request import Request
from toolkit.search.rules import CONSTRAINTS
from toolkit.strategy import Strategy


def blocks(request: Request) -> Iterator[Strategy]:
    """Every candidate, legal or not, as one column Strategy for each framework and way of context parallelism."""
    for each in spaces(request):
        for rows in grow(request, each, lambda strategy, known, rest: None, most_rows=each.size):
            for way, _ in ways(each, rows):
                yield way


def mask(request: Request, strategy: Strategy, eliminated: dict[str, int]) -> Any:
    """Boolean column of the rows that satisfy every constraint; counts the first one that each row breaks."""
    import numpy

    rows = len(strategy.dp)  # type: ignore[arg-type]
    alive = numpy.ones(rows, dtype=bool)
    for constraint in CONSTRAINTS:
        if strategy.framework not in constraint.frameworks:
            continue
        holds = constraint.holds(request.model, request.cluster, request.workload, strategy)
        after = alive & holds
        removed = int(alive.sum() - after.sum())
        if removed:
            eliminated[constraint.name] = eliminated.get(constraint.name, 0) + removed
        alive = after
    return alive
