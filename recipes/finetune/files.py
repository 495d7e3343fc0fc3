"""The files that a fine-tuning run is told of: plan.json and DeepSpeed's configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipes.finetune import checks
from toolkit.errors import ToolkitError
from toolkit.plan import Plan


def read(path: Path) -> bytes:
    """A file of the plan; raises ToolkitError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="make it with toolkit plan ... --out DIR") from error


def ds_config_of(plan: Plan, given: Path | None, beside: Path) -> dict[str, Any] | None:
    """What ``--deepspeed`` gives, else what lies beside the plan; None for other frameworks. Raises ToolkitError."""
    if plan.strategy.framework != "deepspeed":
        if given is not None:
            raise ToolkitError(
                f"--deepspeed {given} was given, the plan's framework is {plan.strategy.framework}",
                remedy="leave --deepspeed out, or plan again with --framework deepspeed",
            )
        return None
    path = given or beside.parent / "ds_config.json"
    try:
        config = json.loads(read(path))
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"{path}: {error}", remedy="DeepSpeed configurations are JSON, without comments") from error
    if not isinstance(config, dict):
        raise ToolkitError(f"{path} is not a JSON object", remedy=checks.AGAIN)
    return config
