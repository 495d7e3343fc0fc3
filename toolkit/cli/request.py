"""From the options of a command to a Request: look names up, fill defaults, and say what was assumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from toolkit.calibration import Calibration
from toolkit.cli.options import pins_of
from toolkit.cluster import ClusterSpec
from toolkit.errors import Problems, ToolkitError
from toolkit.model import ModelSpec
from toolkit.recipe import Contract, Recipe
from toolkit.search.request import Request
from toolkit.strategy import FRAMEWORKS
from toolkit.units import format_count
from toolkit.workload import Workload

PROGRAM_FRAMEWORKS = {"finetune": ("ddp", "deepspeed", "fsdp"), "pretrain": ("megatron",)}

# A step of about 4 million tokens up to 1,024 GPUs (Llama 2, arXiv:2307.09288, table 1) and 16 million
# above (Llama 3 405B, arXiv:2407.21783, section 3.4.1); adapters learn from far fewer.
PRETRAIN_BATCH_TOKENS = 4 * 2**20
LARGE_PRETRAIN_BATCH_TOKENS = 16 * 2**20
ADAPTER_BATCH_SEQUENCES = 128
# option: field of the contract that it replaces
CONTRACT_OPTIONS = {
    "sequence_length": "sequence_length",
    "global_batch": "global_batch_size",
    "learning_rate": "learning_rate",
    "dataset": "dataset",
    "tokenizer": "tokenizer",
}
LEARNING_RATE = {"full": 3.0e-4, "lora": 2.0e-4, "qlora": 2.0e-4}


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


def build(options: dict[str, Any]) -> Asked:
    """Look everything up; raises ToolkitError with all problems of the options together."""
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
                said += (*cluster.notes, *assumptions(cluster))
            except ToolkitError as error:
                problems.absorb(error)
        try:
            calibration = load_calibration(options.get("calibration") or "assumed")
        except ToolkitError as error:
            problems.absorb(error)
        workload = contract = None
        if model is not None and cluster is not None:
            try:
                contract = _contract(options, recipe, model, cluster, said)
                workload = _workload(contract)
            except ToolkitError as error:
                problems.absorb(error)
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
        name=recipe.name if recipe else model.name,
        options=options,
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


def _contract(
    options: dict[str, Any], recipe: Recipe | None, model: ModelSpec, cluster: ClusterSpec, said: list[str]
) -> Contract:
    """The recipe's contract with what the options change, or one made of defaults that are all said."""
    base = recipe.contract if recipe else Contract(model=model.name)
    changes: dict[str, Any] = {}
    if options.get("params") or options.get("model"):
        changes["model"] = _from_anywhere(options["model"]) if options.get("model") else model.name
    method = options.get("method") or base.method
    changes["method"] = method
    changes["precision"] = _precision(options, recipe, cluster, said)
    if options.get("tokens"):
        from toolkit.units import parse_tokens

        changes["total_tokens"] = float(parse_tokens(options["tokens"]))
    if recipe is None:
        length = options.get("sequence_length") or _default_length(model, said)
        changes["sequence_length"] = length
        changes["global_batch_size"] = options.get("global_batch") or _default_batch(method, length, cluster, said)
        changes["learning_rate"] = options.get("learning_rate") or LEARNING_RATE[method]
        said += _said_of_schedule(options, method)
    else:
        for option, field in CONTRACT_OPTIONS.items():
            if options.get(option) and options[option] != getattr(base, field):
                changes[field] = options[option]
                said.append(
                    f"{field} {options[option]} replaces the recipe's {getattr(base, field) or 'own'}: "
                    "this is a new experiment, and nothing else is adapted to it"
                )
    for option in ("dataset", "tokenizer"):
        if options.get(option):
            changes[option] = _from_anywhere(options[option])
    contract = msgspec.structs.replace(base, **changes)
    longest = model.max_position_embeddings
    if longest and contract.sequence_length > longest:
        said.append(
            f"sequence length {contract.sequence_length} is longer than the {longest} positions of {model.name}"
        )
    if model.learned_positions and contract.sequence_length > model.learned_positions:
        raise ToolkitError(
            f"sequence length {contract.sequence_length} does not fit the {model.learned_positions} "
            f"learned positions of {model.name}",
            remedy=f"use --sequence-length {model.learned_positions} or less",
        )
    return contract


def _from_anywhere(name: str) -> str:
    """A path as the training program finds it from another directory; names stay as they are."""
    from pathlib import Path

    from toolkit.registry.models import find

    path = Path(name).expanduser()
    is_path = "/" in name or name.endswith(".json") or find(name) is None  # load_model prefers a registered name
    return str(path.absolute()) if is_path and path.exists() else name


def _said_of_schedule(options: dict[str, Any], method: str) -> list[str]:
    """What a contract without a recipe assumes beyond the options."""
    said = []
    if not options.get("learning_rate"):
        kind = ", a rate for pretraining" if method == "full" else ""
        said.append(f"learning rate {LEARNING_RATE[method]:g}{kind} (no --learning-rate given)")
    said.append("cosine schedule without warm-up, no weight decay: a --recipe states its own")
    if not options.get("dataset"):
        said.append("no data set: give --dataset, or a --recipe, before the files are started")
    return said


def _precision(options: dict[str, Any], recipe: Recipe | None, cluster: ClusterSpec, said: list[str]) -> str:
    """The precision asked for, checked against the hardware; by default bf16, or fp16 where bf16 is missing."""
    accelerator = cluster.accelerator
    asked: str | None = options.get("precision") or (recipe.contract.precision if recipe else None)
    if asked is None:
        if "bf16" in accelerator.peak_flop_per_second:
            return "bf16"
        said.append(f"{accelerator.name} has no bf16: fp16 with loss scaling is planned")
        return "fp16"
    if asked not in accelerator.peak_flop_per_second:
        known = ", ".join(sorted(accelerator.peak_flop_per_second))
        raise ToolkitError(f"{accelerator.name} has no {asked}", remedy=f"use --precision with one of: {known}")
    return asked


def _default_length(model: ModelSpec, said: list[str]) -> int:
    longest = model.learned_positions or model.max_position_embeddings or 4096
    length = min(4096, longest)
    said.append(f"sequence length {length} (no --sequence-length given)")
    return length


def _default_batch(method: str, length: int, cluster: ClusterSpec, said: list[str]) -> int:
    """A usual number of sequences per step, made divisible by the number of GPUs where it can be."""
    gpus = cluster.num_gpus
    if method == "full":
        tokens = PRETRAIN_BATCH_TOKENS if gpus <= 1024 else LARGE_PRETRAIN_BATCH_TOKENS
        batch = max(tokens // length, 1)
    else:
        batch = ADAPTER_BATCH_SEQUENCES
    odd_part = gpus // (gpus & -gpus)
    batch = -(-batch // gpus) * gpus if gpus <= batch else -(-batch // odd_part) * odd_part
    said.append(f"global batch {batch} sequences ({format_count(batch * length)} tokens; no --global-batch given)")
    return batch


def _workload(contract: Contract) -> Workload:
    return Workload(
        sequence_length=contract.sequence_length,
        global_batch_size=contract.global_batch_size,
        total_tokens=contract.total_tokens,
        method=contract.method,
        optimizer=contract.optimizer,
        precision=contract.precision,
        lora_rank=contract.lora_rank,
        lora_targets=contract.lora_targets,
    )
