"""Which way a checkpoint gets into a run: as it is, through DeepSpeed's universal form, or not at all.

A framework's own loader either takes other ranks silently (DDP, FSDP, megatron-core), or fails (DeepSpeed 0.19.8 with
a bare AssertionError at stage 3 and a ZeRORuntimeException below it, whether or not ``elastic_checkpoint`` is set).
:func:`route` says beforehand which of them it is, from what the checkpoint was saved with and what the plan wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolkit.errors import Problem, ToolkitError

AXES = ("tp", "pp", "cp", "ep", "dp")
PLAIN, UNIVERSAL, DISTRIBUTED = "plain", "universal", "distributed"
WITH_UNIVERSAL_STATES = ("adamw", "adamw_unfused")  # two moments per weight, each as long as the weight
ANEW = (
    "start anew from its weights: toolkit ckpt convert CHECKPOINT FOLDER --to hugging-face, then a recipe whose model"
    " is FOLDER (the optimizer's states are lost, and the first steps show it)"
)


class Route(NamedTuple):
    """``kind`` is ``plain`` (load it as it is), ``universal`` (convert it first) or ``distributed`` (cut anew)."""

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
        "gradient_accumulation_dtype": workload.gradient_accumulation_dtype,
    }


def route(saved: Mapping[str, Any], wanted: Mapping[str, Any], where: str = "the checkpoint") -> Route:
    """How a checkpoint with these :func:`facts` gets into a run with those.

    Raises ToolkitError, with the reason and the remedy, for what cannot be done. A fact that ``saved`` does not have
    is taken to be as wanted.
    """
    old = {key: saved.get(key, value) for key, value in wanted.items()}
    if old["framework"] != wanted["framework"]:
        raise ToolkitError(
            f"{where} was saved with framework {old['framework']}, the plan has {wanted['framework']}: no framework"
            " reads the optimizer's states of another",
            remedy=f"plan again with --framework {old['framework']}, or {ANEW}",
        )
    if old["optimizer"] != wanted["optimizer"]:
        raise ToolkitError(
            f"{where} was saved with optimizer {old['optimizer']}, the plan has {wanted['optimizer']}",
            remedy=f"plan again with --optimizer {old['optimizer']}, or {ANEW}",
        )
    if wanted["framework"] == "deepspeed":
        return _deepspeed(old, wanted, where)
    if wanted["framework"] == "megatron":
        return _megatron(old, wanted, where)
    why = "every rank holds the whole state" if wanted["framework"] == "ddp" else "its shards name their place"
    return Route(PLAIN, why)


def _deepspeed(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> Route:
    same = all(old[key] == new[key] for key in ("zero_stage", "world_size", "gradient_accumulation_dtype"))
    if same:
        return Route(PLAIN, "the same stage and ranks")
    if old["zero_stage"] == new["zero_stage"] == 0:
        return Route(PLAIN, "every rank holds the whole state")
    said = f"{where} was saved with {_stage(old)}, the plan has {_stage(new)}"
    if 0 in (old["zero_stage"], new["zero_stage"]):
        raise ToolkitError(
            f"{said}: stage 0 keeps the states of the optimizer under the numbers of its parameters, and"
            " DeepSpeed's universal form has no stage 0",
            remedy=f"plan again with --zero {old['zero_stage']}"
            f"{'' if old['zero_stage'] else ' (any number of ranks)'}, or {ANEW}",
        )
    if new["optimizer"] not in WITH_UNIVERSAL_STATES:
        raise ToolkitError(
            f"{said}: DeepSpeed's universal form holds the two moments of Adam, and the optimizer is"
            f" {new['optimizer']}",
            remedy=f"resume with {_stage(old)}, or {ANEW}",
        )
    return Route(UNIVERSAL, f"from {_stage(old)} to {_stage(new)}")


def _megatron(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> Route:
    problems = []
    if bool(old["zero_stage"]) != bool(new["zero_stage"]):
        problems.append(
            Problem(
                f"{where} was saved {'with' if old['zero_stage'] else 'without'} the distributed optimizer, the plan is"
                " the other way",
                f"plan again with --zero {int(bool(old['zero_stage']))}",
            )
        )
    was, now = old["degrees"], new["degrees"]
    if (was.get("ep", 1) == 1) != (now["ep"] == 1):
        problems.append(
            Problem(
                f"{where} was saved with ep {was['ep']}, the plan has ep {now['ep']}",
                "the optimizer state cannot go between ep 1 and more; any ep above 1 can follow any other",
            )
        )
    if problems:
        raise ToolkitError(*problems)
    moved = [f"{axis} {was.get(axis, 1)} to {now[axis]}" for axis in AXES if was.get(axis, 1) != now[axis]]
    return Route(DISTRIBUTED, ", ".join(moved)) if moved else Route(PLAIN, "the same degrees")


def _stage(facts: Mapping[str, Any]) -> str:
    ranks = facts["world_size"]
    return f"framework deepspeed, zero_stage {facts['zero_stage']}, world_size {ranks}"
