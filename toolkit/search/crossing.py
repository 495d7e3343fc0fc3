"""The product of the axes, grown axis by axis, so that what is illegal is dropped before it multiplies.

The whole product can have 10^9 rows (15,120 GPUs, 720 layers, 720 experts). A rule is applied as soon as the
fields that it reads are there, and counts every row of the product that it spares. Rows are handled in pieces of
bounded size, depth first, so that memory stays bounded too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from toolkit.search.request import Request
from toolkit.strategy import Strategy

# axes in this order, where a space has them: those whose rules remove most come first
ORDER = (
    "micro_batch_size",
    "virtual_pipeline_stages",
    "ep",
    "etp",
    "sequence_parallel",
    "zero_stage",
    "offload",
    "hpz",
    "dp_shard",
    "recompute",
    "recompute_layers",
)
# fields that are the same for all rows of a space
CONSTANT = frozenset(("framework", "schedule", "vocabulary", "tp_overlap", "dp_overlap", "recompute_layers"))
MOST_ROWS = 2**16  # of one piece: a column takes 512 KiB, an evaluation some dozens of columns

Columns = dict[str, Any]
# (strategy, the fields of it that are known, rows of the product behind each row) -> rows to keep, None for all
Keep = Callable[[Strategy, frozenset[str], int], Any]


@dataclass(frozen=True)
class Space:
    """The degrees of a framework as columns, and the axes to cross them with.

    A row stands for several candidates, which are laid out when it is known to be legal: one for each of ``methods``
    by which context-parallel ranks share keys (the first alone where cp is 1), and with ``partial`` one for every
    number of layers that full recomputation can run again (:mod:`toolkit.search.partial`).
    """

    framework: str
    start: Columns
    axes: dict[str, list[int]]
    methods: tuple[str, ...] = ("p2p",)
    partial: bool = False
    fixed: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Candidates of the whole product, all layers recomputed or none."""
        return int(self.candidates(self.start["cp"]).sum()) * math.prod(len(values) for values in self.axes.values())

    def candidates(self, cp: Any) -> Any:
        """How many candidates each row with that cp stands for."""
        import numpy

        return numpy.where(cp > 1, len(self.methods), 1)


def space(
    framework: str,
    request: Request,
    axes: dict[str, Any],
    methods: tuple[str, ...] = ("p2p",),
    partial: bool = False,
) -> Space:
    """From the axes of a framework: ``grid`` of (tp, pp, cp, dp), and fields with the values to try."""
    import numpy

    grid = numpy.array(axes.pop("grid"), dtype=numpy.int64)
    start = {axis: grid[:, i] for i, axis in enumerate(("tp", "pp", "cp", "dp"))}
    if "etp" not in axes:  # nothing but experts is cut by it
        start["etp"] = start["tp"]
    if "dp_shard" not in axes:
        shard = request.pins.get("dp_shard")  # only fsdp has it; the constraint that refuses it elsewhere says so
        start["dp_shard"] = start["dp"] if shard is None else numpy.full_like(start["dp"], shard)
    fixed = request.fixed if framework == "megatron" else {}
    return Space(framework, start, {name: axes[name] for name in ORDER if name in axes}, methods, partial, fixed)


def grow(request: Request, space: Space, keep: Keep, most_rows: int = MOST_ROWS) -> Iterator[Strategy]:
    """The rows of the product that ``keep`` keeps, as column strategies of at most ``most_rows`` rows or so."""
    rest = math.prod(len(values) for values in space.axes.values())
    rows = _sift(space, dict(space.start), keep, rest)
    yield from _cross(request, space, rows, tuple(space.axes), rest, keep, max(most_rows, 1))


def _cross(
    request: Request, space: Space, rows: Columns, names: tuple[str, ...], rest: int, keep: Keep, most_rows: int
) -> Iterator[Strategy]:
    import numpy

    number = len(rows["tp"])
    if not number:
        return
    if not names:
        yield _strategy(space, rows)
        return
    values = numpy.asarray(space.axes[names[0]], dtype=numpy.int64)
    rest //= len(values)
    piece = max(most_rows // len(values), 1)
    for first in range(0, number, piece):
        here = {name: numpy.repeat(column[first : first + piece], len(values)) for name, column in rows.items()}
        here[names[0]] = numpy.tile(values, len(here["tp"]) // len(values))
        if names[0] == "micro_batch_size":
            here["gradient_accumulation_steps"] = _accumulation(request, here)
        yield from _cross(request, space, _sift(space, here, keep, rest), names[1:], rest, keep, most_rows)


def _sift(space: Space, rows: Columns, keep: Keep, rest: int) -> Columns:
    kept = keep(_strategy(space, rows), frozenset(rows.keys() | (CONSTANT - space.axes.keys())), rest)
    return rows if kept is None else {name: column[kept] for name, column in rows.items()}


def _strategy(space: Space, rows: Columns) -> Strategy:
    words: dict[str, Any] = {"framework": space.framework, "cp_method": space.methods[0]} | space.fixed
    return Strategy(**words, **rows)


def ways(space: Space, strategy: Strategy) -> Iterator[tuple[Strategy, Any]]:
    """The candidates of some rows by each method of context parallelism, and which rows those are."""
    import numpy

    cp: Any = strategy.cp
    for method in space.methods:
        rows = numpy.arange(len(cp)) if method == space.methods[0] else numpy.flatnonzero(cp > 1)
        if len(rows):
            chosen = strategy if len(rows) == len(cp) else strategy.select(rows)
            yield msgspec.structs.replace(chosen, cp_method=method), rows


def _accumulation(request: Request, rows: Columns) -> Any:
    """Micro batches per step: as pinned, or what the global batch leaves, rounded down."""
    import numpy

    if "gradient_accumulation_steps" in request.pins:
        return numpy.full_like(rows["dp"], request.pins["gradient_accumulation_steps"])
    per_micro_step = numpy.maximum(rows["micro_batch_size"] * rows["dp"], 1)
    return numpy.maximum(request.workload.global_batch_size // per_micro_step, 1)
