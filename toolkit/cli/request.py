"""From the options of a command to a Request: names are looked up, and what was assumed is said."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toolkit.calibration import Calibration
from toolkit.cli.contract import contract_of
from toolkit.cli.options import MOST_PRICE, pins_of
from toolkit.cluster import ClusterSpec
from toolkit.errors import Problems, ToolkitError
from toolkit.model import ModelSpec
from toolkit.recipe import Contract, Recipe
from toolkit.search.contradictions import check_pins
from toolkit.search.request import Request
from toolkit.strategy import FRAMEWORKS
from toolkit.workload import Workload

PROGRAM_FRAMEWORKS = {"finetune": ("ddp", "deepspeed", "fsdp"), "pretrain": ("megatron",)}


@dataclass(frozen=True)
class Asked:
    """A request with what plans will carry: contract, recipe, assumptions, calibration."""

    request: Request
    contract: Contract
    recipe: Recipe | None
    assumptions: tuple[str, ...]
    calibration: Calibration
    name: str
    options: dict[str, Any]  # of the command, as given
    contract_notes: tuple[str, ...] = ()  # those of the assumptions that are about the contract


def build(options: dict[str, Any]) -> Asked:
    """Look everything up; raises ToolkitError with all problems of the options together."""
    import msgspec

    from toolkit.calibrate.measured import machine_note, on_measured
    from toolkit.registry.calibrations import load_calibration
    from toolkit.registry.clusters import resolve_cluster
    from toolkit.registry.efficiency import assumptions

    said: list[str] = []
    recipe = model = cluster = calibration = None
    with Problems() as problems:
        try:
            recipe = _recipe(options)
            model = _model(options, recipe)
            said += model.notes
        except ToolkitError as error:
            problems.absorb(error)
        if not options.get("gpus"):
            problems.add("--gpus is missing", "say how many GPUs there are: --gpus 64, or --gpus 8x8")
        else:
            try:
                cluster = resolve_cluster(
                    options["gpus"],
                    cluster=options.get("cluster"),
                    accelerator=options.get("accelerator"),
                    gpus_per_node=options.get("gpus_per_node"),
                )
                cluster = priced(cluster, options)
            except ToolkitError as error:
                problems.absorb(error)
        try:
            given = options.get("calibration")
            calibration = load_calibration("assumed" if given is None else given)
        except ToolkitError as error:
            problems.absorb(error)
        if cluster is not None:
            note = ""
            if calibration is not None:
                cluster, note = on_measured(cluster, calibration), machine_note(cluster, calibration)
            said += (*cluster.notes, *assumptions(cluster), *filter(None, [note]))
        workload = contract = None
        before = len(said)
        if model is not None and cluster is not None:
            try:
                contract = contract_of(options, recipe, model, cluster, said)
                if contract.rope_theta:
                    model = msgspec.structs.replace(model, rope_theta=contract.rope_theta)
                workload = _workload(contract, cluster)
            except ToolkitError as error:
                problems.absorb(error)
        if model is not None:
            check_pins(model, pins_of(options), problems)
    assert model and cluster and calibration and workload and contract  # Problems has raised otherwise
    allowed = PROGRAM_FRAMEWORKS[recipe.program] if recipe else FRAMEWORKS
    framework = options.get("framework") or "any"
    if framework != "any" and framework not in allowed:
        raise ToolkitError(
            f"recipe {recipe.name if recipe else ''} is run by the {recipe.program if recipe else ''} program, "
            f"which does not use {framework}",
            remedy=f"use --framework {' or '.join(allowed)}, or another recipe",
        )
    request = Request(
        model=model,
        cluster=cluster,
        workload=workload,
        framework=framework,
        allowed_frameworks=allowed,
        pins=pins_of(options),
        objective=options.get("objective") or "throughput",
    )
    return Asked(
        request=request,
        contract=contract,
        recipe=recipe,
        assumptions=tuple(said),
        calibration=calibration,
        name=_name(recipe, contract) if recipe else model.name,
        options=options,
        contract_notes=tuple(said[before:]),
    )


def _name(recipe: Recipe, contract: Contract) -> str:
    """The recipe's; with its batch where that is another: the run is another experiment, in a folder of its own."""
    other = contract.global_batch_size != recipe.contract.global_batch_size
    return f"{recipe.name}-batch{contract.global_batch_size}" if other else recipe.name


def priced(cluster: ClusterSpec, options: dict[str, Any]) -> ClusterSpec:
    """The cluster with the price that the command gives; raises ToolkitError for one that is no number."""
    import msgspec

    price = options.get("price_per_gpu_hour")
    if price is None:
        return cluster
    if not 0.0 < price <= MOST_PRICE:
        raise ToolkitError(
            f"--price-per-gpu-hour {price} is no price", remedy="write a number above 0, for example 2.5"
        )
    return msgspec.structs.replace(
        cluster, accelerator=msgspec.structs.replace(cluster.accelerator, price_per_hour=float(price))
    )


def larger_clusters(asked: Asked) -> Iterator[ClusterSpec]:
    """Twice the GPUs, four times, ..., laid out as the command would: a node is filled before there are two.

    Sizes that do not make equal nodes, or that the cluster does not have, are left out.
    """
    from toolkit.gpu_counts import parse_gpus
    from toolkit.registry.clusters import resolve_cluster
    from toolkit.search.misses import MOST_GPUS_TRIED

    given = parse_gpus(asked.options["gpus"])
    gpus = asked.request.cluster.num_gpus
    while (gpus := 2 * gpus) <= MOST_GPUS_TRIED:
        nodes = f"{gpus // given.gpus_per_node}x{given.gpus_per_node}" if given.gpus_per_node else str(gpus)
        with contextlib.suppress(ToolkitError):
            yield resolve_cluster(
                nodes,
                cluster=asked.options.get("cluster"),
                accelerator=asked.options.get("accelerator") or given.accelerator or None,
                gpus_per_node=asked.options.get("gpus_per_node"),
            )


def roomier_clusters(asked: Asked) -> Iterator[ClusterSpec]:
    """Other accelerators of the same vendor by rising memory, one and as many as were asked for."""
    from toolkit.registry.accelerators import accelerator_names, load_accelerator
    from toolkit.registry.clusters import resolve_cluster

    given = asked.request.cluster.accelerator
    known = [load_accelerator(name) for name in accelerator_names()]
    more = [each for each in known if each.vendor == given.vendor and each.memory_bytes > given.memory_bytes]
    for accelerator in sorted(more, key=lambda each: (each.memory_bytes, each.name)):
        if asked.request.workload.precision not in accelerator.peak_flop_per_second:
            continue
        for gpus in dict.fromkeys((1, asked.request.cluster.num_gpus)):
            with contextlib.suppress(ToolkitError):
                yield resolve_cluster(str(gpus), accelerator=accelerator.name)


def _recipe(options: dict[str, Any]) -> Recipe | None:
    if not options.get("recipe"):
        return None
    from toolkit.registry.recipes import load_recipe

    return load_recipe(options["recipe"])


def _model(options: dict[str, Any], recipe: Recipe | None) -> ModelSpec:
    from toolkit.registry.models import load_model, model_from_text

    given = [name for name in ("params", "model") if options.get(name)]
    if len(given) > 1:
        raise ToolkitError("--params and --model both say which model", remedy="give one of them")
    if options.get("model"):
        return load_model(options["model"])
    if options.get("params"):
        return model_from_text(options["params"])
    if recipe is not None:
        return load_model(recipe.contract.model)
    raise ToolkitError("no model is given", remedy="use --params 7B, --model NAME|config.json|DIR, or --recipe NAME")


def _workload(contract: Contract, cluster: ClusterSpec) -> Workload:
    """On processors nothing is compiled: megatron-core's layers run operator by operator (recipes/pretrain/machine)."""
    on_processors = cluster.accelerator.is_cpu
    return Workload(
        kernels="unfused" if on_processors else "default",
        fused_accumulation=not on_processors,
        sequence_length=contract.sequence_length,
        global_batch_size=contract.global_batch_size,
        total_tokens=contract.total_tokens,
        method=contract.method,
        optimizer=contract.optimizer,
        precision=contract.precision,
        lora_rank=contract.lora_rank,
        lora_targets=contract.lora_targets,
        objective=contract.objective,
    )
