"""Full recomputation of some layers: the fewest that fit, found without trying every number.

For one strategy, bytes fall and seconds rise with the number of layers that run again (equations A22 and T6). So of
all numbers the fewest that fit are the fastest that fit, and more than those are worth nothing: the number is solved
for, by chords between one that fits and one that does not. Every number counts as a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from toolkit.pipeline_split import pipeline_split
from toolkit.strategy import Strategy

# (column strategy) -> bytes per GPU of each row
Totals = Callable[[Strategy], Any]
BISECT_EVERY = 3  # chords converge in two steps where the bytes are linear, halving bounds the others


def depths(layers: int, strategy: Strategy) -> Any:
    """How many numbers of recomputed layers lie between none and all, for each row: one layer more in each chunk."""
    virtual = strategy.virtual_pipeline_stages
    return pipeline_split(layers, strategy.pp, virtual).middle // virtual - 1


def at_depth(strategy: Strategy, depth: Any) -> Strategy:
    """The rows with ``depth`` layers of each chunk run again."""
    return msgspec.structs.replace(strategy, recompute_layers=depth * strategy.virtual_pipeline_stages)


def fewest(strategy: Strategy, most: Any, totals: Totals, limits: tuple[float, ...]) -> list[Any]:
    """For each limit, the least depth of each row whose bytes stay within it; 0 where ``most`` does not either."""
    import numpy

    deepest = totals(at_depth(strategy, most))
    wanted = [(numpy.flatnonzero(deepest <= limit), limit) for limit in limits]
    rows = numpy.concatenate([some for some, _ in wanted])
    limit = numpy.concatenate([numpy.full(len(some), each) for some, each in wanted])
    owner = numpy.concatenate([numpy.full(len(some), number) for number, (some, _) in enumerate(wanted)])
    found = [numpy.zeros_like(most) for _ in limits]
    if not len(rows):
        return found
    low, high = numpy.ones_like(rows), most[rows]  # high fits, low does not: unless it is the answer
    above, below = totals(at_depth(strategy.select(rows), low)), deepest[rows]
    high = numpy.where(above <= limit, 1, high)
    turn = 0
    while len(rows):
        open_ = high - low > 1
        for number, depth in enumerate(found):
            done = ~open_ & (owner == number)
            depth[rows[done]] = high[done]
        rows, low, high, above, below, limit, owner = (
            each[open_] for each in (rows, low, high, above, below, limit, owner)
        )
        if not len(rows):
            break
        turn += 1
        part = 0.5 if turn % BISECT_EVERY == 0 else (above - limit) / (above - below)
        middle = numpy.clip(numpy.ceil(low + part * (high - low)).astype(low.dtype), low + 1, high - 1)
        there = totals(at_depth(strategy.select(rows), middle))
        fits = there <= limit
        low, above = numpy.where(fits, low, middle), numpy.where(fits, above, there)
        high, below = numpy.where(fits, middle, high), numpy.where(fits, there, below)
    return found
