"""When nothing fits: the nearest miss, and every single change that would make it fit."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.search.planner import Choice, least_memory, search
from toolkit.search.request import Request
from toolkit.strategy import describe
from toolkit.units import format_bytes

MOST_GPUS = 65536


@dataclass(frozen=True)
class Way:
    """One change to the request under which a plan fits."""

    change: str
    plan: str
    total_bytes: float

    def __str__(self) -> str:
        return f"{self.change}: {self.plan} needs {format_bytes(self.total_bytes)}"


def ways_to_fit(request: Request, calibration: Calibration) -> list[Way]:
    """Changes tried one at a time: each pin dropped, the framework opened, recompute, LoRA, more GPUs."""
    ways: list[Way] = []
    for pin, value in request.pins.items():
        pins = {name: v for name, v in request.pins.items() if name != pin}
        _try(ways, f"without {_option(pin)} {value}", request.replace(pins=pins), calibration)
    if request.framework != "any":
        _try(ways, "with any framework", request.replace(framework="any"), calibration)
    if request.pins and not ways:
        _try(ways, "without any pinned degree", request.replace(pins={}), calibration)
    workload = request.workload
    if workload.method == "full":
        lora = msgspec.structs.replace(workload, method="lora")
        _try(ways, "with --method lora", request.replace(workload=lora), calibration)
    if workload.method != "qlora":
        qlora = msgspec.structs.replace(workload, method="qlora")
        _try(ways, "with --method qlora", request.replace(workload=qlora), calibration)
    _more_gpus(ways, request, calibration)
    return ways


def nearest_miss(request: Request, calibration: Calibration) -> Choice | None:
    """The legal candidate that needs the least memory."""
    return least_memory(request, calibration, search(request, calibration, top=0))


def _more_gpus(ways: list[Way], request: Request, calibration: Calibration) -> None:
    cluster, workload = request.cluster, request.workload
    factor = 2
    while cluster.num_gpus * factor <= MOST_GPUS:
        larger = _grown(cluster, factor)
        # a data-parallel size above the global batch is illegal: keep the batch, as the contract asks
        if _try(ways, f"on {larger.num_gpus} GPUs", request.replace(cluster=larger, workload=workload), calibration):
            return
        factor *= 2


def _grown(cluster: ClusterSpec, factor: int) -> ClusterSpec:
    """The same kind of nodes, ``factor`` times as many GPUs; a node that is not full is filled first."""
    return msgspec.structs.replace(cluster, nodes=cluster.nodes * factor)


def _try(ways: list[Way], change: str, request: Request, calibration: Calibration) -> bool:
    result = search(request, calibration, top=1)
    if not result.choices:
        return False
    choice = result.choices[0]
    ways.append(Way(change, describe(choice.strategy), choice.estimate.memory.total_bytes))
    return True


def _option(pin: str) -> str:
    return "--" + {"zero_stage": "zero", "micro_batch_size": "micro-batch"}.get(pin, pin).replace("_", "-")
