"""Which way a checkpoint gets into a run: as it is, rewritten in a form that its framework loads, or not at all.

A framework's own loader either takes other ranks silently (DDP, FSDP, megatron-core), or fails (DeepSpeed 0.19.8 with
a bare AssertionError at stage 3 and a ZeRORuntimeException below it, whether or not ``elastic_checkpoint`` is set).
:func:`route` says beforehand which of them it is, from what the checkpoint was saved with and what the plan wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolkit.errors import ToolkitError

AXES = ("tp", "pp", "cp", "ep", "dp")
PLAIN, UNIVERSAL, REWRITTEN, DISTRIBUTED = "plain", "universal", "rewritten", "distributed"
BY_WEIGHT = ("adamw", "adamw_unfused", "sgd")  # two moments per weight, each as long as the weight; or nothing
OF_THE_TRAINER = ("ddp", "fsdp", "deepspeed")  # frameworks under which one program trains the same model
ANEW = (
    "start anew from its weights: toolkit ckpt convert CHECKPOINT FOLDER --to hugging-face, then a recipe whose model"
    " is FOLDER (the optimizer's states are lost, and the first steps show it)"
)


class Route(NamedTuple):
    """How, and why so.

    ``kind`` is ``plain`` (load it as it is), ``universal`` (convert it to DeepSpeed's universal form first),
    ``rewritten`` (write it first as this framework and stage would have) or ``distributed`` (cut anew while loading).
    """

    kind: str
    why: str


def facts(strategy: Any, workload: Any) -> dict[str, Any]:
    """What of a plan decides how its checkpoints are laid out."""
    return {
        "framework": strategy.framework,
        "zero_stage": strategy.zero_stage,
        "world_size": strategy.tp * strategy.pp * strategy.cp * strategy.dp,
        "degrees": {axis: getattr(strategy, axis) for axis in AXES},
        "optimizer": workload.optimizer,
        "precision": workload.precision,
        "gradient_accumulation_dtype": workload.gradient_accumulation_dtype,
    }


def route(saved: Mapping[str, Any], wanted: Mapping[str, Any], where: str = "the checkpoint") -> Route:
    """How a checkpoint with these :func:`facts` gets into a run with those.

    Raises ToolkitError, with the reason and the remedy, for what cannot be done. A fact that ``saved`` does not have
    is taken to be as wanted.
    """
    old = {key: saved.get(key, value) for key, value in wanted.items()}
    names = {old["framework"], wanted["framework"]}
    if len(names) > 1 and not names <= {*OF_THE_TRAINER}:
        raise ToolkitError(
            f"{where} was saved with framework {old['framework']}, the plan has {wanted['framework']}: no framework"
            " reads the optimizer's states of another program",
            remedy=f"plan again with --framework {old['framework']}, or {ANEW}",
        )
    if old["optimizer"] != wanted["optimizer"]:
        raise ToolkitError(
            f"{where} was saved with optimizer {old['optimizer']}, the plan has {wanted['optimizer']}",
            remedy=f"plan again with --optimizer {old['optimizer']}, or {ANEW}",
        )
    if len(names) > 1 or wanted["framework"] == "deepspeed":
        return _between_stages(old, wanted, where)
    if wanted["framework"] == "megatron":
        return _megatron(old, wanted)
    why = "every rank holds the whole state" if wanted["framework"] == "ddp" else "its shards name their place"
    return Route(PLAIN, why)


def _between_stages(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> Route:
    kept = ("framework", "zero_stage", "world_size", "gradient_accumulation_dtype")
    if all(old[key] == new[key] for key in kept):
        return Route(PLAIN, "the same stage and ranks")
    deepspeed = old["framework"] == new["framework"] == "deepspeed"
    if deepspeed and old["zero_stage"] == new["zero_stage"] == 0:
        return Route(PLAIN, "every rank holds the whole state")
    if new["optimizer"] not in BY_WEIGHT:
        raise ToolkitError(
            f"{where} was saved with {_stage(old)}, the plan has {_stage(new)}: the states of {new['optimizer']} are"
            " blocks of what one rank holds, and no other framework, stage or number of ranks has the same blocks",
            remedy=f"resume with {_stage(old)}, or {ANEW}",
        )
    kind = UNIVERSAL if new["framework"] == "deepspeed" and new["zero_stage"] else REWRITTEN
    return Route(kind, f"from {_stage(old)} to {_stage(new)}")


def _megatron(old: Mapping[str, Any], new: Mapping[str, Any]) -> Route:
    was, now = old["degrees"], new["degrees"]
    moved = [f"{axis} {was.get(axis, 1)} to {now[axis]}" for axis in AXES if was.get(axis, 1) != now[axis]]
    if bool(old["zero_stage"]) != bool(new["zero_stage"]):
        kinds = ("the ordinary optimizer", "the distributed one")
        moved.append(" to ".join(kinds if new["zero_stage"] else reversed(kinds)))
    return Route(DISTRIBUTED, ", ".join(moved)) if moved else Route(PLAIN, "the same degrees")


def _stage(facts: Mapping[str, Any]) -> str:
    stage = f", zero_stage {facts['zero_stage']}" if facts["framework"] == "deepspeed" else ""
    return f"framework {facts['framework']}{stage}, world_size {facts['world_size']}"
