"""Ranking: the ladder that practitioners climb, and the order of what fits.

The ladder: data parallel until it does not fit; then shard optimizer state, gradients, parameters,
in that order; then tensor parallel inside a node; then pipeline, expert and context parallel; and
offload where nothing else does well. A higher rung must earn its complexity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.estimates import VERDICTS
from toolkit.numeric import where
from toolkit.search.candidates import divisors
from toolkit.search.request import Request
from toolkit.strategy import FRAMEWORKS, Strategy

if TYPE_CHECKING:
    from toolkit.search.planner import Block

RUNGS = (
    "data parallel",
    "ZeRO-1: shard the optimizer states",
    "ZeRO-2: shard the gradients too",
    "ZeRO-3 / FSDP: shard the parameters too",
    "Megatron data parallel",
    "tensor parallel inside a node",
    "pipeline parallel",
    "expert parallel",
    "context parallel",
    "offload the optimizer to host memory",
    "offload optimizer and parameters",
)

# How much faster a plan must be than one of price 0, to be ranked before it: 1 % a rung, and 10 % for leaving
# Hugging Face models for Megatron (another program, checkpoint and data format). Context parallelism cuts
# sequences that may be short already: 3 % more, though published runs with it at up to 8,192 tokens are estimated
# too short by no more than that. Offload rests on what is least known of a machine: host memory, host cores, a host
# link that GPUs share. A difference inside the error of the estimates is no reason to climb. Choices, not
# measurements; docs/maths.md has the table.
PRICE_OF_RUNG = (0.0, 0.01, 0.02, 0.03, 0.12, 0.13, 0.14, 0.15, 0.18, 0.25, 0.30)
# Of tp * pp * cp * ep: more parts that must wait for one another. Not of virtual stages: they add no rank that waits,
# only messages, which are in the time, and they save memory.
PRICE_OF_DOUBLING = 0.005
PRICE_OF_METHOD = 0.01  # of context parallelism other than by a ring, which is Megatron's own choice
PRICE_OF_SECONDARY_COPY = 0.01  # of hpZ, and of a whole copy in every node (hybrid sharding)


def rung(strategy: Strategy) -> Any:
    """Index into RUNGS (a column for columns)."""
    if strategy.framework == "megatron":
        split = where(strategy.pp > 1, 6, where(strategy.tp > 1, 5, 4))
        return where(strategy.cp > 1, 8, where(strategy.ep > 1, 7, split))
    return where(strategy.offload == 0, strategy.zero_stage, 8 + strategy.offload)


def price(strategy: Strategy) -> Any:
    """What the complexity of a strategy must earn, as a share of its step time (a column for columns)."""
    import numpy

    parts = 1.0 * strategy.tp * strategy.pp * strategy.cp * strategy.ep
    return (
        numpy.asarray(PRICE_OF_RUNG)[rung(strategy)]
        + PRICE_OF_DOUBLING * numpy.log2(parts)
        + PRICE_OF_METHOD * (strategy.cp_method != "p2p")
        + where((strategy.hpz > 1) | (strategy.dp_shard < strategy.dp), PRICE_OF_SECONDARY_COPY, 0.0)
    )


def order(request: Request, blocks: list[Block], top: int = 1 << 62) -> list[tuple[Block, int]]:
    """The best row of each of ``top`` layouts, best layout first: fitting plans, then tight ones.

    Throughput and cost order by ``seconds * (1 + price)`` (at a given number of GPUs the cheapest plan is
    the fastest); memory orders by bytes per GPU.
    """
    import numpy

    kept = [(number, *_best_of_layouts(request, block)) for number, block in enumerate(blocks)]
    kept = [each for each in kept if len(each[1])]
    if not kept:
        return []
    owner = numpy.concatenate([numpy.full(len(rows), number) for number, rows, _ in kept])
    rows = numpy.concatenate([rows for _, rows, _ in kept])
    layouts = numpy.concatenate([layout for _, _, layout in kept])
    keys = [_keys(request, blocks[number], rows) for number, rows, _ in kept]
    total_bytes, score, tight = (numpy.concatenate(column) for column in zip(*keys, strict=True))
    best_first = numpy.lexsort((total_bytes, score, tight))
    _, first = numpy.unique(layouts[best_first], return_index=True)
    chosen = best_first[numpy.sort(first)[:top]]
    return [(blocks[owner[i]], int(rows[i])) for i in chosen]


def _keys(request: Request, block: Block, rows: Any) -> tuple[Any, Any, Any]:
    """Of some rows of a block: bytes (ties, the same time with and without a switch, go to fewer), score, verdict."""
    total_bytes = block.total_bytes[rows]
    if request.objective == "memory":
        return total_bytes, total_bytes, block.verdict[rows]
    return total_bytes, block.seconds[rows] * (1.0 + price(block.strategy.select(rows))), block.verdict[rows]


def _best_of_layouts(request: Request, block: Block) -> tuple[Any, Any]:
    """The best fitting row of each layout in one block, and its layout: far fewer than there are rows to order."""
    import numpy

    rows = numpy.flatnonzero(numpy.isfinite(block.seconds))
    total_bytes, score, tight = _keys(request, block, rows)
    layouts = _layout(request, block.strategy.select(rows), len(rows))
    order = numpy.lexsort((total_bytes, score, tight, layouts))
    _, first = numpy.unique(layouts[order], return_index=True)
    return rows[order[first]], layouts[order[first]]


def _layout(request: Request, strategy: Strategy, rows: int) -> Any:
    """One integer per (framework, ZeRO stage, offload, sharding group, tp, pp, cp, ep).

    A degree is written as its place among the divisors that a legal one is of: fewer than 2^12 for any number
    of GPUs or experts below 10^12.
    """
    import numpy

    gpus, experts = divisors(request.cluster.num_gpus), divisors(max(request.model.num_experts, 1))
    key = numpy.full(rows, FRAMEWORKS.index(strategy.framework), dtype=numpy.int64)
    for value, bits in (
        (strategy.zero_stage if strategy.framework == "deepspeed" else 0, 2),
        (strategy.offload, 2),
        (where(strategy.hpz > 1, 1, 0), 1),
        (where(strategy.dp_shard == strategy.dp, 0, 1), 1),
        (numpy.searchsorted(gpus, strategy.tp), 12),
        (numpy.searchsorted(gpus, strategy.pp), 12),
        (numpy.searchsorted(gpus, strategy.cp), 12),
        (numpy.searchsorted(experts, strategy.ep), 12),
    ):
        key = (key << bits) + value
    return key


@dataclass(frozen=True)
class Rung:
    """What a rung of the ladder can do for this request."""

    name: str
    legal: int
    fitting: int
    least_bytes: float  # over all legal candidates of the rung
    best_seconds: float  # of a plan that fits, else of a tight one; infinite when there is none
    best: Strategy | None
    verdict: str  # of the best


def ladder(blocks: list[Block]) -> list[Rung]:
    """One entry for each rung that has legal candidates."""
    import numpy

    found: list[Rung] = []
    for index, name in enumerate(RUNGS):
        legal = fitting = 0
        least, seconds, best, worst = float("inf"), float("inf"), None, VERDICTS.index("no")
        for block in blocks:
            here = numpy.flatnonzero((rung(block.strategy) + numpy.zeros(len(block.seconds), int)) == index)
            if not len(here):
                continue
            legal += len(here)
            fitting += int(numpy.isfinite(block.seconds[here]).sum())
            least = min(least, float(block.total_bytes[here].min()))
            for kind in range(worst + 1):
                row = int(here[numpy.where(block.verdict[here] == kind, block.seconds[here], numpy.inf).argmin()])
                if block.verdict[row] == kind and (kind, block.seconds[row]) < (worst, seconds):
                    worst, seconds, best = kind, float(block.seconds[row]), block.strategy.take(row)
        if legal:
            found.append(Rung(name, legal, fitting, least, seconds, best, VERDICTS[worst]))
    return found
