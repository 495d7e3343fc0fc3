"""Every legal candidate, evaluated: memory first, then the time of what fits, as columns.

What does not change a figure is not evaluated again: bytes do not depend on how context-parallel ranks share keys, so
they are found once for all ways of doing so; the number of recomputed layers is solved for, not tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from toolkit.calibration import Calibration
from toolkit.estimate.communication import communication
from toolkit.estimate.host import host_memory
from toolkit.estimate.memory import memory
from toolkit.estimate.step import step
from toolkit.estimate.verdict import COMFORT, verdict
from toolkit.estimates import VERDICTS
from toolkit.numeric import where
from toolkit.search.candidates import spaces
from toolkit.search.constraints import HOST_MEMORY, MEMORY, Sieve
from toolkit.search.crossing import Keep, Space, grow, ways
from toolkit.search.partial import at_depth, depths, fewest
from toolkit.search.request import Request
from toolkit.strategy import RECOMPUTE, Strategy

NONE, SELECTIVE, FULL = range(len(RECOMPUTE))
HOPELESS = 1.25  # times the memory of a GPU, with all that saves memory
FITS, NO = VERDICTS.index("fits"), VERDICTS.index("no")


@dataclass
class Block:
    """Legal candidates of one framework. ``seconds`` is infinite where memory does not fit."""

    strategy: Strategy
    total_bytes: Any
    verdict: Any
    seconds: Any


@dataclass
class Tally:
    """Candidates in all, those that are legal and fit, and how many each rule was the first to eliminate."""

    total: int = 0
    feasible: int = 0
    eliminated: dict[str, int] = field(default_factory=dict)

    def drop(self, name: str, number: int) -> None:
        """Count candidates as eliminated."""
        if number:
            self.eliminated[name] = self.eliminated.get(name, 0) + number


class Held(NamedTuple):
    """Rows, their bytes and verdicts, and which of them the host can hold."""

    rows: Strategy
    total_bytes: Any
    verdict: Any
    host_fits: Any


class Fewer(NamedTuple):
    """Some layers recomputed instead of all, for the rows of full recomputation (``rows``, an index).

    ``most`` numbers lie between none and all; at depth ``tight`` and from there on the plan is tight or better, from
    ``fitting`` on it fits (0: never). Only where ``laid`` is a plan without recomputation not as good.
    """

    rows: Any
    most: Any
    laid: Any
    tight: Any
    fitting: Any


def blocks(request: Request, calibration: Calibration, tally: Tally, only_fastest: bool = False) -> Iterator[Block]:
    """Every legal candidate, evaluated, in blocks; ``tally`` counts them, and those that were eliminated.

    With ``only_fastest``, other ways of sharing keys are timed only where the best so far leaves them room: a ring
    without its own seconds is the least that any way can take.
    """
    import numpy

    record = float("inf")
    for space in spaces(request):
        tally.total += space.size
        sieve = Sieve(request, space, tally.eliminated)
        for rows in grow(request, space, _keep(request, calibration, space, sieve, tally)):
            held = _held(request, calibration, rows)
            fewer = _fewer(request, calibration, held) if space.partial else None
            floor: Any = None
            for way, of_rows in ways(space, rows):
                legal = of_rows[sieve.legal(way)]
                if not len(legal):
                    continue
                room = None if floor is None else floor[legal] < record
                block, least = _timed(request, calibration, held, way.cp_method, legal, tally, room)
                yield block
                if only_fastest and way.cp_method == space.methods[0]:
                    floor = numpy.zeros(len(held.total_bytes))
                    floor[legal] = least
                if fewer is not None:
                    yield from _timed_fewer(request, calibration, held, way.cp_method, legal, fewer, tally)
                record = min(record, float(block.seconds.min()))


def _keep(request: Request, calibration: Calibration, space: Space, sieve: Sieve, tally: Tally) -> Keep:
    """The rules, and once the degrees are known an end for micro batches that fit with nothing that is left to choose.

    What is left (sequence parallelism, the distributed optimizer, recomputation) is taken as thrifty as it can be;
    HOPELESS leaves room for a choice that is thriftier still. The smallest micro batch is kept: where nothing fits,
    it is the nearest miss.
    """
    smallest, limit = min(space.axes["micro_batch_size"]), HOPELESS * request.cluster.accelerator.memory_bytes
    thrifty = {name: max(values) for name, values in space.axes.items() if name in ("zero_stage", "recompute")}

    def keep(rows: Strategy, known: frozenset[str], rest: int) -> Any:
        alive = sieve(rows, known, rest)
        if not known >= {"ep", "etp"} or "sequence_parallel" in known or space.framework != "megatron":
            return alive
        import numpy

        micro, cp, tp = (numpy.asarray(column) for column in (rows.micro_batch_size, rows.cp, rows.tp))
        asked = numpy.flatnonzero((micro > smallest) if alive is None else (micro > smallest) & alive)
        if len(asked):
            cut = where(tp[asked] > 1, max(space.axes["sequence_parallel"]), 0)
            least = msgspec.structs.replace(rows.select(asked), sequence_parallel=cut, **thrifty)
            hopeless = asked[_total_bytes(request, calibration, least) > limit]
            alive = numpy.ones(len(micro), dtype=bool) if alive is None else alive
            alive[hopeless] = False
            tally.drop(MEMORY, int(space.candidates(cp[hopeless]).sum()) * rest)
        return alive

    return keep


def _held(request: Request, calibration: Calibration, rows: Strategy) -> Held:
    import numpy

    total_bytes = _total_bytes(request, calibration, rows)
    host_fits, limit = numpy.ones(len(total_bytes), dtype=bool), request.cluster.host_memory_bytes
    if limit:
        needed = host_memory(request.model, request.cluster, request.workload, rows, calibration)
        host_fits &= needed.total_bytes <= limit
    return Held(rows, total_bytes, verdict(total_bytes, request.cluster.accelerator.memory_bytes), host_fits)


def _timed(
    request: Request, calibration: Calibration, held: Held, method: str, legal: Any, tally: Tally, room: Any = None
) -> tuple[Block, Any]:
    """The ``legal`` rows by one method of context parallelism, and what each would take if it sent nothing.

    Rows without ``room`` are not timed.
    """
    verdicts, host_fits = held.verdict[legal], held.host_fits[legal]
    fits = verdicts != NO
    tally.drop(MEMORY, len(legal) - int(fits.sum()))
    tally.drop(HOST_MEMORY, int((fits & ~host_fits).sum()))
    fits &= host_fits
    tally.feasible += int(fits.sum())
    strategy = _by(held.rows.select(legal), method)
    seconds, least = _seconds(request, calibration, strategy, fits if room is None else fits & room)
    return Block(strategy, held.total_bytes[legal], verdicts, seconds), least


def _fewer(request: Request, calibration: Calibration, held: Held) -> Fewer | None:
    import numpy

    every = depths(request.model.num_hidden_layers, held.rows)
    rows = numpy.flatnonzero((held.rows.recompute == FULL) & (every > 0))
    if not len(rows):
        return None
    laid = held.host_fits[rows] & ~_fits_without(held, rows)
    most = every[rows]
    tight, fitting = numpy.ones_like(most), numpy.ones_like(most)  # all of them, where there are none at all
    if laid.any():
        limit = request.cluster.accelerator.memory_bytes
        some = held.rows.select(rows[laid])
        tight[laid], fitting[laid] = fewest(
            some, most[laid], lambda part: _total_bytes(request, calibration, part), (limit, COMFORT * limit)
        )
    return Fewer(rows, most, laid, tight, fitting)


def _fits_without(held: Held, rows: Any) -> Any:
    """Of rows of full recomputation: whether the same strategy without any fits, as far as the rows beside tell.

    The values of the last axis lie side by side: none, selective where that is legal, full.
    """
    import numpy

    recompute: Any = held.rows.recompute
    before, further = numpy.maximum(rows - 1, 0), numpy.maximum(rows - 2, 0)
    at = numpy.where(recompute[before] == SELECTIVE, further, before)
    return (recompute[at] == NONE) & (held.verdict[at] == FITS)


def _timed_fewer(
    request: Request, calibration: Calibration, held: Held, method: str, legal: Any, fewer: Fewer, tally: Tally
) -> Iterator[Block]:
    """Of ``legal`` rows by one method: the fewest layers with which they fit, and with which they are tight."""
    import numpy

    alive = numpy.zeros(len(held.total_bytes), dtype=bool)
    alive[legal] = True
    here = alive[fewer.rows]
    host_fits, feasible = here & held.host_fits[fewer.rows], fewer.most - fewer.tight + 1
    number = int(feasible[host_fits & (fewer.tight > 0)].sum())
    tally.total += int(fewer.most[here].sum())
    tally.feasible += number
    tally.drop(HOST_MEMORY, int(fewer.most[here & ~host_fits].sum()))
    tally.drop(MEMORY, int(fewer.most[host_fits].sum()) - number)
    first = numpy.flatnonzero(here & fewer.laid & (fewer.tight > 0))
    second = numpy.flatnonzero(here & fewer.laid & (fewer.fitting > 0) & (fewer.fitting != fewer.tight))
    if len(first):
        depth = numpy.concatenate((fewer.tight[first], fewer.fitting[second]))
        rows = held.rows.select(fewer.rows[numpy.concatenate((first, second))])
        chosen = _by(at_depth(rows, depth), method)
        total_bytes = _total_bytes(request, calibration, chosen)
        verdicts = verdict(total_bytes, request.cluster.accelerator.memory_bytes)
        seconds, _ = _seconds(request, calibration, chosen, numpy.ones(len(depth), dtype=bool))
        yield Block(chosen, total_bytes, verdicts, seconds)


def _by(rows: Strategy, method: str) -> Strategy:
    return msgspec.structs.replace(rows, cp_method=method)


def _total_bytes(request: Request, calibration: Calibration, rows: Strategy) -> Any:
    import numpy

    needed = memory(request.model, request.cluster, request.workload, rows, calibration).total_bytes
    return needed + numpy.zeros(len(rows.dp))  # type: ignore[arg-type]


def _seconds(request: Request, calibration: Calibration, rows: Strategy, timed: Any) -> tuple[Any, Any]:
    """Seconds of a step of the ``timed`` rows, infinite for the others; and without those of the context axis.

    What the axis exposes in a micro batch is also waited for in the bubble, at most once for each other stage.
    """
    import numpy

    seconds, least = numpy.full(len(timed), numpy.inf), numpy.full(len(timed), numpy.inf)
    if timed.any():
        chosen = rows if timed.all() else rows.select(timed)
        parts = communication(request.model, request.cluster, request.workload, chosen, calibration)
        found = step(request.model, request.cluster, request.workload, chosen, parts, calibration)
        seconds[timed] = found.seconds
        waits = 1.0 + (chosen.pp - 1.0) / chosen.gradient_accumulation_steps
        least[timed] = found.seconds - found.exposed_cp_seconds * waits
    return seconds, least
