"""When nothing fits: the nearest miss, and every single change that would make it fit."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.errors import Problem, ToolkitError
from toolkit.search.candidates import spaces
from toolkit.search.constraints import broken, violated
from toolkit.search.crossing import grow
from toolkit.search.planner import Choice, search
from toolkit.search.request import Request
from toolkit.strategy import Strategy, describe, value_in_words
from toolkit.units import format_bytes

MOST_GPUS_TRIED = 65536  # larger clusters are no advice


@dataclass(frozen=True)
class Way:
    """One change to the request under which a plan fits."""

    change: str
    plan: str
    total_bytes: float

    def __str__(self) -> str:
        return f"{self.change}: {self.plan} needs {format_bytes(self.total_bytes)}"


def ways_to_fit(
    request: Request,
    calibration: Calibration,
    larger: Iterable[ClusterSpec] | None = None,
    roomier: Iterable[ClusterSpec] = (),
) -> list[Way]:
    """Changes tried one at a time: each pin dropped, the framework opened, LoRA, QLoRA, a batch for all, more GPUs.

    Recomputation, offload and smaller micro batches are candidates of every search, so they need no trial of
    their own. ``larger`` are clusters of rising size to try, by default twice the nodes, four times, ...; ``roomier``
    those of other accelerators by rising memory, of which the first that fits is named: where nothing else helps, and
    where each GPU holds a whole 4-bit base, so that more of them do not.
    """
    ways: list[Way] = []
    for pin, value in request.pins.items():
        pins = {name: v for name, v in request.pins.items() if name != pin}
        _try(ways, f"without {_option(pin, value)}", request.replace(pins=pins), calibration)
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
    _larger_batch(ways, request, calibration)
    if request.workload.global_batch_size < request.cluster.num_gpus:
        _fewer_gpus(ways, request, calibration)
    _more_gpus(ways, request, calibration, larger if larger is not None else _more_nodes(request.cluster))
    if not ways or workload.method == "qlora":
        _more_memory(ways, request, calibration, roomier)
    return ways


def nearly_legal(request: Request) -> tuple[Strategy, list[Problem]] | None:
    """Where no candidate is legal: one that breaks the fewest rules, and what they say about it.

    Of a very large space only the first piece is looked at: what a pin breaks, it breaks everywhere.
    """
    found: tuple[int, Strategy] | None = None
    model_parallel = any(request.pins.get(axis, 1) > 1 for axis in ("tp", "pp", "cp", "ep", "etp"))
    wanted = [each for each in spaces(request) if not model_parallel or each.framework == "megatron"]
    for each in wanted or spaces(request):
        for piece in itertools.islice(grow(request, each, lambda strategy, known, rest: None), 1):
            number = broken(request, piece)
            row = int(number.argmin())
            if found is None or number[row] < found[0]:
                found = int(number[row]), piece.take(row)
    if found is None:
        return None
    return found[1], [problem for _, problem in violated(request, found[1])]


def _larger_batch(ways: list[Way], request: Request, calibration: Calibration) -> None:
    """Data parallelism over all GPUs needs a sequence for each of them."""
    batch, gpus = request.workload.global_batch_size, request.cluster.num_gpus
    if batch % gpus:
        larger = msgspec.structs.replace(request.workload, global_batch_size=-(-batch // gpus) * gpus)
        words = f"with --global-batch {larger.global_batch_size} (another experiment)"
        _try(ways, words, request.replace(workload=larger), calibration)


def _fewer_gpus(ways: list[Way], request: Request, calibration: Calibration) -> None:
    """Where the batch has no sequence for each GPU: the most whole nodes that share it evenly."""
    cluster, batch = request.cluster, request.workload.global_batch_size
    for nodes in range(min(cluster.nodes - 1, batch // cluster.gpus_per_node), 0, -1):
        if batch % (nodes * cluster.gpus_per_node) == 0:
            fewer = msgspec.structs.replace(cluster, nodes=nodes)
            _try(
                ways,
                f"on {fewer.num_gpus} GPUs ({nodes} x {cluster.gpus_per_node})",
                request.replace(cluster=fewer),
                calibration,
            )
            return


def _more_gpus(ways: list[Way], request: Request, calibration: Calibration, larger: Iterable[ClusterSpec]) -> None:
    """The fewest GPUs that hold the model; where that takes offload, the fewest that need none as well."""
    offloaded = False
    for cluster in larger:
        # a data-parallel size above the global batch is illegal: keep the batch, as the contract asks
        bigger = request.replace(cluster=cluster)
        choice = _best(bigger, calibration)
        if choice is None or (offloaded and choice.strategy.offload):
            continue
        _add(ways, f"on {cluster.num_gpus} GPUs ({cluster.nodes} x {cluster.gpus_per_node})", choice)
        if not choice.strategy.offload:
            return
        offloaded = True


def _more_memory(ways: list[Way], request: Request, calibration: Calibration, roomier: Iterable[ClusterSpec]) -> None:
    for cluster in roomier:
        choice = _best(request.replace(cluster=cluster), calibration)
        if choice is not None and choice.verdict == "fits":
            _add(ways, f"on {cluster.num_gpus} x {cluster.accelerator.name}", choice)
            return


def _more_nodes(cluster: ClusterSpec) -> Iterator[ClusterSpec]:
    """The same kind of nodes, twice as many, four times, ..."""
    factor = 2
    while cluster.num_gpus * factor <= MOST_GPUS_TRIED:
        yield msgspec.structs.replace(cluster, nodes=cluster.nodes * factor)
        factor *= 2


def _try(ways: list[Way], change: str, request: Request, calibration: Calibration) -> None:
    choice = _best(request, calibration)
    if choice is not None:
        _add(ways, change, choice)


def _best(request: Request, calibration: Calibration) -> Choice | None:
    """The first plan, or none; a change that the model does not allow (adapters on Mamba) is no way out."""
    with contextlib.suppress(ToolkitError):
        choices = search(request, calibration, top=1).choices
        return choices[0] if choices else None
    return None


def _add(ways: list[Way], change: str, choice: Choice) -> None:
    ways.append(Way(change, describe(choice.strategy), choice.estimate.memory.total_bytes))


def _option(pin: str, value: int) -> str:
    """The option and value as the command line has them."""
    if pin == "sequence_parallel":
        return "--sequence-parallel" if value else "--no-sequence-parallel"
    names = {
        "zero_stage": "zero",
        "micro_batch_size": "micro-batch",
        "gradient_accumulation_steps": "accumulation",
        "virtual_pipeline_stages": "vpp",
    }
    return f"--{names.get(pin, pin).replace('_', '-')} {value_in_words(pin, value)}"
