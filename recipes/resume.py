"""From which checkpoint a start goes on, and which starts must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.recipe import contract_sha256
from toolkit.runtime import checkpoint


def facts(plan: Plan) -> dict[str, Any]:
    """What a later start must share with a checkpoint to go on from it."""
    strategy = plan.strategy
    return {
        "contract_sha256": contract_sha256(plan.contract),
        "framework": strategy.framework,
        "zero_stage": strategy.zero_stage,
        "world_size": strategy.dp,
    }


def finished(plan: Plan, folder: Path) -> dict[str, Any] | None:
    """What the marker of a finished run says, if there is one; raises if it is another experiment's."""
    done = checkpoint.finished(folder)
    if done is not None and done.get("contract_sha256") != contract_sha256(plan.contract):
        raise ToolkitError(f"{folder} holds a finished run of another experiment", remedy="give another --output-dir")
    return done


def newest(plan: Plan, folder: Path) -> str | None:
    """Name of the newest whole checkpoint, after torn ones were set aside; for one rank to call.

    Raises ToolkitError for a checkpoint that this plan cannot continue. DDP keeps the whole state on each
    rank and FSDP's checkpoints can be cut anew; DeepSpeed's are tied to their stage and rank count (it fails
    with a bare AssertionError at ZeRO-3).
    """
    checkpoint.set_aside_incomplete(folder)
    whole = checkpoint.complete(folder)
    if not whole:
        return None
    saved, wanted = checkpoint.facts(whole[-1]), facts(plan)
    if saved.get("contract_sha256") != wanted["contract_sha256"]:
        raise ToolkitError(f"{whole[-1]} belongs to another experiment", remedy="give another --output-dir")
    keys = ("framework", "zero_stage", "world_size") if wanted["framework"] == "deepspeed" else ("framework",)
    if any(saved.get(key) != wanted[key] for key in keys):
        have, need = (", ".join(f"{key} {values.get(key)}" for key in keys) for values in (saved, wanted))
        raise ToolkitError(
            f"{whole[-1]} was saved with {have}; the plan has {need}",
            remedy="resume with the layout it was saved with, or start anew in another --output-dir",
        )
    return whole[-1].name
