"""Which parameters and which kept activations a pipeline stage holds, for any mix of layers.

Per-layer values are summed once per model into prefix tables; a stage (or a column of stages) reads two
entries of each. With interleaving a device holds ``v`` chunks of ``L / (p v)`` layers; the first chunk of the
first stage and the last chunk of the last one are exact, the others take the mean of the remaining layers
(exact for a uniform stack).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import msgspec

from toolkit import megatron_shapes
from toolkit.equation import equation, tracing
from toolkit.estimate.layer_bytes import LayerBytes, checkpoint_bytes, layer_bytes
from toolkit.estimate.matrices import matrices
from toolkit.estimate.parameters import ModelParameters, count_parameters, lora_parameters
from toolkit.estimate.partition import Sizes, adapter_sizes, flat_sizes
from toolkit.estimate.selective import selective_bytes
from toolkit.model import ModelSpec
from toolkit.numeric import Number, holds_anywhere, maximum, minimum, take, where
from toolkit.pipeline_split import EVEN, PipelineSplit, pipeline_split
from toolkit.strategy import Strategy
from toolkit.workload import Workload

Prefix = tuple[float, ...]
Prefixes = tuple[Prefix, Prefix, Prefix, Prefix]  # one for each part of LayerBytes
Parts = tuple[Number, Number, Number, Number]


class Tables(NamedTuple):
    """Prefix sums over layers (entry ``i`` is the sum of layers before ``i``) and what a stage adds at its ends."""

    counted: ModelParameters
    megatron: (
        bool  # Megatron's layers, also under another framework's sharding: tensor parallelism cuts the token table
    )
    layers: int
    uniform: bool
    sharded: Prefix
    replicated: Prefix
    routed: Prefix
    kept: Prefixes  # bytes per token without recomputation, in the parts of LayerBytes
    selective: Prefixes
    checkpoint: float
    kinds: tuple[LayerBytes, ...]
    adapters: int
    quantised: float  # parameters that a 4-bit base model packs
    small: float  # parameters of tensors below ten widths: ZeRO-3 never partitions them
    tensors: Sizes  # elements of what is trained, in the order in which DeepSpeed flattens it


class Stage(NamedTuple):
    """One pipeline stage, by what parallelism divides. Counts are of parameters, ``kept`` are bytes per token."""

    sharded: Number
    replicated: Number
    routed: Number
    kept: Parts
    selective: Parts
    layers: Number
    embedding: Number  # share of the token table (and positions) on this stage
    head: Number  # share of the output matrix, a tied copy included
    in_flight: Number  # micro batches whose activations are alive


def tables(model: ModelSpec, workload: Workload, framework: str) -> Tables:
    """Prefix tables, cached by value except while equations are traced."""
    if tracing():
        return _tables(model, workload, framework)
    return _cached(msgspec.msgpack.encode((model, workload)), framework)


@functools.lru_cache(maxsize=64)
def _cached(key: bytes, framework: str) -> Tables:
    model, workload = msgspec.msgpack.decode(key, type=tuple[ModelSpec, Workload])
    return _tables(model, workload, framework)


def _tables(model: ModelSpec, workload: Workload, framework: str) -> Tables:
    counted = count_parameters(model)
    letters = list(zip(model.layer_mixers, model.layer_mlps, strict=True))
    kinds = {pair: layer_bytes(model, workload, framework, *pair) for pair in dict.fromkeys(letters)}
    selective = {pair: selective_bytes(model, workload, framework, *pair) for pair in kinds}
    linear = sum(m.elements * m.number * m.fused for m in matrices(model) if m.linear and m.group != "router")
    norms = model.norms_per_layer * len(letters) + 1
    adapters = 0 if workload.method == "full" else lora_parameters(model, workload.lora_rank, workload.lora_targets)
    return Tables(
        counted=counted,
        megatron=framework == "megatron" or workload.kernels == "megatron",
        layers=len(letters),
        uniform=len(kinds) == 1 and len({layer.total for layer in counted.layers}) <= 1,
        sharded=_prefix([layer.sharded for layer in counted.layers]),
        replicated=_prefix([layer.replicated for layer in counted.layers]),
        routed=_prefix([layer.routed_experts for layer in counted.layers]),
        kept=_columns([kinds[pair] for pair in letters]),
        selective=_columns([selective[pair] for pair in letters]),
        checkpoint=checkpoint_bytes(model, workload, framework),
        kinds=tuple(kinds.values()),
        adapters=adapters,
        quantised=float(linear) if workload.method == "qlora" else 0.0,
        small=float(norms * model.hidden_size * (1 + model.norm_bias)),
        tensors=adapter_sizes(adapters, model) if adapters else flat_sizes(model, counted),
    )


def _prefix(values: list[float]) -> Prefix:
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return tuple(sums)


def _columns(layers: list[LayerBytes]) -> Prefixes:
    replicated, sharded, dispatched, inside = (_prefix(list(part)) for part in zip(*layers, strict=True))
    return replicated, sharded, dispatched, inside


def stages(model: ModelSpec, strategy: Strategy, table: Tables) -> tuple[Stage, ...]:
    """The stages that can be the fullest: first, last and, in a mixed stack or an uneven split, the second."""
    split = pipeline_split(table.layers, strategy.pp, strategy.virtual_pipeline_stages)
    found = [_first(strategy, table, split), _last(strategy, table, split)]
    if not table.uniform or holds_anywhere(split.way != EVEN):
        found.append(_second(strategy, table, split))
    return tuple(found)


def second_stage(strategy: Strategy, table: Tables) -> Stage:
    """The second of several stages: a middle one where there are more than two."""
    return _second(strategy, table, pipeline_split(table.layers, strategy.pp, strategy.virtual_pipeline_stages))


@equation("A17", "min(m, p - k); interleaved c*min(m, 2*p - 1 - 2*k) + (1 - c)*min(m, p)")
def in_flight(pp: Number, virtual: Number, micro_batches: Number, stage: Number, chunk: Number) -> Number:
    """Micro batches alive on stage ``k`` at its peak, in units of the whole stage's layers.

    1F1B holds ``min(p - k, m)``. With interleaving one chunk, ``c`` of the stage's layers, holds ``2 p - 1 - 2 k``
    (the first chunk of an early stage, the last of a late one) and the others ``p``: chunks of equal layers are
    ``(p v + p - 1 - 2 k) / v``, with k = 0 the factor ``1 + (p - 1) / (p v)``.
    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; arXiv 2205.05198.
    """
    unequal = minimum(2.0 * pp - 1.0 - 2.0 * stage, 1.0 * micro_batches)
    interleaved = chunk * unequal + (1.0 - chunk) * minimum(1.0 * pp, 1.0 * micro_batches)
    return where(virtual > 1, interleaved, minimum(1.0 * pp - stage, 1.0 * micro_batches))


@equation("A23", "min(m, d*p)")
def zero_bubble_in_flight(pp: Number, micro_batches: Number, delayed: float) -> Number:
    """Zero-bubble schedules: every stage may hold what the first one does in 1F1B (``d`` = 1), or twice that.

    ZB-1p and ZB-V (two chunks a stage, both counted) have d = 1, ZB-2p has 2. Gradients of weights that wait
    keep less than the activations whose place they take.
    Source: arXiv 2401.10241, sections 2.3 and 5.1; arXiv 2405.15362, section 3.
    """
    return minimum(delayed * pp, 1.0 * micro_batches)


@equation("A18", "ceil(V/(128*t))*128*t")
def padded_vocabulary(vocab_size: int, framework: str, tp: Number) -> Number:
    """Megatron rounds the vocabulary up to a multiple of ``128 tp``.

    Source: ``make_vocab_size_divisible_by`` of Megatron-LM.
    """
    return megatron_shapes.padded_vocabulary(vocab_size, tp) if framework == "megatron" else vocab_size


def _first(strategy: Strategy, table: Tables, split: PipelineSplit) -> Stage:
    alone = where(strategy.pp > 1, 0.0, 1.0)
    chunk = split.first // strategy.virtual_pipeline_stages
    if strategy.schedule == "zb-v":  # the pipeline turns at the last device: the first has both ends
        both = where(strategy.pp > 1, split.first + split.last - split.middle, split.first)
        return _stage(strategy, table, both, 0 * chunk, chunk, 0, embedding=1.0, head=1.0)
    return _stage(strategy, table, split.first, 0 * chunk, chunk, 0, embedding=1.0, head=alone)


def _last(strategy: Strategy, table: Tables, split: PipelineSplit) -> Stage:
    alone = where(strategy.pp > 1, 0.0, 1.0)
    if strategy.schedule == "zb-v":
        return _second(strategy, table, split)
    chunk = split.last // strategy.virtual_pipeline_stages
    end = table.layers + 0 * chunk
    return _stage(strategy, table, split.last, end - chunk, end, strategy.pp - 1, embedding=alone, head=1.0)


def _second(strategy: Strategy, table: Tables, split: PipelineSplit) -> Stage:
    alone = where(strategy.pp > 1, 0.0, 1.0)
    size = where(strategy.pp > 2, split.middle, split.last)
    chunk = size // strategy.virtual_pipeline_stages
    start = where(strategy.pp > 1, split.first // strategy.virtual_pipeline_stages, 0)
    stage = minimum(strategy.pp - 1, 1)
    last = where((strategy.pp == 2) & (strategy.schedule != "zb-v"), 1.0, alone)
    return _stage(strategy, table, size, start, start + chunk, stage, embedding=alone, head=last)


def _stage(
    strategy: Strategy,
    table: Tables,
    size: Number,
    start: Number,
    stop: Number,
    index: Number,
    embedding: Number,
    head: Number,
) -> Stage:
    layers = 1.0 * size
    if table.uniform:

        def total(prefix: Prefix) -> Number:
            return prefix[1] * layers
    else:
        # layers of the other chunks of this device, as a fraction of all layers outside the known chunk
        others = maximum(layers - (stop - start), 0.0) / maximum(table.layers - (stop - start), 1)

        def total(prefix: Prefix) -> Number:
            here = take(prefix, stop) - take(prefix, start)
            return here + (prefix[-1] - here) * others

    def totals(prefixes: Prefixes) -> Parts:
        replicated, sharded, dispatched, inside = (total(prefix) if prefix[-1] else 0.0 for prefix in prefixes)
        return replicated, sharded, dispatched, inside

    if strategy.vocabulary in ("spread", "interlaced"):
        embedding, head = 1.0 / strategy.pp, 1.0 / strategy.pp
    alive = _alive(strategy, index, (stop - start) / maximum(layers, 1.0))
    return Stage(
        sharded=total(table.sharded),
        replicated=total(table.replicated),
        routed=total(table.routed) if table.routed[-1] else 0.0,
        kept=totals(table.kept),
        selective=totals(table.selective),
        layers=layers,
        embedding=embedding,
        head=head,
        in_flight=alive,
    )


def _alive(strategy: Strategy, index: Number, chunk: Number) -> Number:
    """Micro batches alive on a stage; a vocabulary cut over the pipeline lets one more wait, or half as many again."""
    s, micro = strategy, strategy.gradient_accumulation_steps
    if s.schedule == "1f1b":
        alive = in_flight(s.pp, s.virtual_pipeline_stages, micro, index, chunk)
    else:
        alive = zero_bubble_in_flight(s.pp, micro, 2.0 if s.schedule == "zb-2p" else 1.0)
    if s.vocabulary == "spread":  # arXiv 2411.05288, section 5: p + 1 where 1F1B holds p
        alive = minimum(alive + where(s.pp > 1, 1.0, 0.0), 1.0 * micro)
    if s.vocabulary == "interlaced":  # the same section: every stage waits for the head of each micro batch
        alive = minimum(1.5 * alive, 1.0 * micro)
    return alive
