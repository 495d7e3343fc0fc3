"""Every strategy worth evaluating: the axes of each framework, whose product is the space.

What a constraint removes of the product is counted and shown. A pin narrows an axis to one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from toolkit.search.crossing import Space, space
from toolkit.search.request import Request
from toolkit.strategy import CP_METHODS, RECOMPUTE

FULL = RECOMPUTE.index("full")


def divisors(number: int) -> list[int]:
    """All positive divisors, rising."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def grids(gpus: int, pins: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """Every (tp, pp, cp, dp) with tp * pp * cp * dp = gpus that agrees with the pins.

    A pinned degree that does not divide the GPUs is kept, with the remaining degrees at 1, so that
    the constraint which refuses it can say so.
    """
    found = []
    for tp in _axis(pins, "tp", divisors(gpus)):
        for pp in _axis(pins, "pp", divisors(max(gpus // tp, 1))):
            for cp in _axis(pins, "cp", divisors(max(gpus // (tp * pp), 1))):
                dp = pins.get("dp", max(gpus // (tp * pp * cp), 1))
                if "dp" not in pins or tp * pp * cp * dp == gpus or {"tp", "pp", "cp"} <= set(pins):
                    found.append((tp, pp, cp, dp))
    return found or [(pins.get("tp", 1), pins.get("pp", 1), pins.get("cp", 1), pins.get("dp", gpus))]


def micro_batches(request: Request) -> list[int]:
    """Divisors of the global batch, or the pinned one."""
    return _axis(request.pins, "micro_batch_size", divisors(request.workload.global_batch_size))


def spaces(request: Request) -> Iterator[Space]:
    """The space of each framework that the request allows."""
    makers = {"ddp": _ddp, "deepspeed": _deepspeed, "fsdp": _fsdp, "megatron": _megatron}
    pins = request.pins
    for framework in request.frameworks:
        megatron = framework == "megatron"
        methods = CP_METHODS if megatron else CP_METHODS[:1]
        if "cp_method" in pins:
            methods = (CP_METHODS[pins["cp_method"]],)
        partial = megatron and "recompute_layers" not in pins and pins.get("recompute", FULL) == FULL
        yield space(framework, request, makers[framework](request), methods, partial)


def _ddp(request: Request) -> dict[str, Any]:
    return _data_parallel(request) | {
        "zero_stage": _axis(request.pins, "zero_stage", [0]),
        "offload": _axis(request.pins, "offload", [0]),
        "hpz": _axis(request.pins, "hpz", [1]),
    }


def _deepspeed(request: Request) -> dict[str, Any]:
    gpus, per_node = request.cluster.num_gpus, request.cluster.gpus_per_node
    # stage 0 under DeepSpeed is DDP with another allreduce: searched only on request
    stages = [1, 2, 3] if request.framework == "any" else [0, 1, 2, 3]
    return _data_parallel(request) | {
        "zero_stage": _axis(request.pins, "zero_stage", stages),
        "offload": _axis(request.pins, "offload", [0, 1, 2]),
        "hpz": _axis(request.pins, "hpz", [1, per_node] if gpus > per_node > 1 else [1]),
    }


def _fsdp(request: Request) -> dict[str, Any]:
    gpus = request.cluster.num_gpus
    return _data_parallel(request) | {
        "zero_stage": _axis(request.pins, "zero_stage", [3]),
        "offload": _axis(request.pins, "offload", [0]),
        "hpz": _axis(request.pins, "hpz", [1]),
        "dp_shard": _axis(request.pins, "dp_shard", _groups(gpus, request.cluster.gpus_per_node)),
    }


def _groups(gpus: int, per_node: int) -> list[int]:
    """Sizes of groups that share one copy: parts of a node, or whole nodes."""
    return [d for d in divisors(gpus) if d > 1 and (per_node % d == 0 or d % per_node == 0)] or [1]


def _data_parallel(request: Request) -> dict[str, Any]:
    """Axes of the frameworks whose only degree is dp; a pin on another degree is kept, to be refused."""
    pins = request.pins
    grid = [(pins.get("tp", 1), pins.get("pp", 1), pins.get("cp", 1), pins.get("dp", request.cluster.num_gpus))]
    return {
        "grid": grid,
        "micro_batch_size": micro_batches(request),
        "recompute": _axis(pins, "recompute", [0, 2]),
        **_pinned(pins, "recompute_layers", "etp"),
        "virtual_pipeline_stages": _axis(pins, "virtual_pipeline_stages", [1]),
        "ep": _axis(pins, "ep", [1]),
        "sequence_parallel": _axis(pins, "sequence_parallel", [0]),
    }


def _megatron(request: Request) -> dict[str, Any]:
    model, pins, gpus = request.model, request.pins, request.cluster.num_gpus
    grid = grids(gpus, pins)
    chunks = _chunks(model.num_hidden_layers, {pp for _, pp, _, _ in grid})
    axes = {
        "grid": grid,
        "micro_batch_size": micro_batches(request),
        "recompute": _axis(pins, "recompute", [0, 1, 2]),
        "virtual_pipeline_stages": _axis(pins, "virtual_pipeline_stages", chunks),
        "ep": _axis(pins, "ep", divisors(model.num_experts) if model.is_moe else [1]),
        "sequence_parallel": _axis(pins, "sequence_parallel", [0, 1] if max(g[0] for g in grid) > 1 else [0]),
        "zero_stage": _axis(pins, "zero_stage", [0, 1]),
        "offload": _axis(pins, "offload", [0]),
        "hpz": _axis(pins, "hpz", [1]),
        **_pinned(pins, "recompute_layers", "etp"),
    }
    if model.is_moe:
        inside = [d for d in divisors(gpus) if d <= request.cluster.fast_domain]
        axes["etp"] = _axis(pins, "etp", [d for d in inside if model.moe_intermediate_size % d == 0])
    return axes


def _chunks(layers: int, degrees: set[int]) -> list[int]:
    """Virtual stages that some pipeline degree can cut the layers into, embedding and head counted or not; 1 too."""
    counted = [(count, pp) for pp in degrees - {1} for count in range(layers, layers + 3) if count % pp == 0]
    return sorted({1}.union(*(divisors(count // pp) for count, pp in counted)))


def _pinned(pins: dict[str, int], *names: str) -> dict[str, list[int]]:
    """Axes that exist only where they are pinned."""
    return {name: [pins[name]] for name in names if name in pins}


def _axis(pins: dict[str, int], name: str, values: Sequence[int]) -> list[int]:
    return [pins[name]] if name in pins else list(values)
