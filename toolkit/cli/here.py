"""What this machine is, for commands that start something on it."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.plan import Plan

PROGRAMS = ("finetune", "pretrain")  # whose options recipes/option_table.py has under these names
DEVICES = ("nvidia[0-9]*", "dxg")  # where the driver's own tool is not in a container, they still are


def gpus_here() -> list[str]:
    """Each GPU's name as the driver tells it, without the vendor's."""
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = done.stdout.splitlines() if done.returncode == 0 else []
    return [name.strip().removeprefix("NVIDIA ") for name in names]


def gpu_here() -> str:
    """The first one's name; empty where there is none."""
    return next(iter(gpus_here()), "")


def on_this_machine(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with this machine as the cluster, and a message that says so, where they name none."""
    if options.get("cluster") or options.get("accelerator"):
        return dict(options)
    name = gpu_here()
    told = name or "no GPU, its processors"
    click.echo(f"this machine: {told} (--cluster or --accelerator NAME for another one)", err=True)
    return dict(options) | ({"accelerator": name} if name else {"cluster": "local-cpu"})


def check_runs_here(plan: Plan, files: Mapping[str, str]) -> None:
    """Raises ToolkitError for a plan that cannot run here, before anything is written or started.

    GPUs that are plainly not here, and what the plan's own program would refuse of ``files``: data, models and packages
    that are missing. Where the site sets up another environment for the program, only that one can tell.
    """
    require_gpus(plan)
    if not (plan.cluster.site.setup_command or plan.cluster.site.modules):
        (_check_pretrain if plan.program == "pretrain" else _check_finetune)(plan, files)


def check_arguments(plan: Plan, arguments: Sequence[str]) -> None:
    """Raises ToolkitError with all that the program would refuse of its options: not after a wait in a queue."""
    if (
        set(arguments) & {"-h", "--help"} or plan.program not in PROGRAMS
    ):  # the program tells, or the files cannot be made
        return
    from toolkit.recipe import planned_steps

    table = _of_recipes("option_table")
    given = getattr(table, plan.program)().read(["--plan=plan.json", *arguments])
    table.require_reachable(given, planned_steps(plan.contract))


def require_gpus(plan: Plan) -> None:
    """Raises ToolkitError where a plan's GPUs are plainly not in this machine."""
    accelerator = plan.cluster.accelerator
    if accelerator.is_cpu or accelerator.vendor != "NVIDIA":
        return
    found, needed = len(gpus_here()), plan.cluster.gpus_per_node
    if found >= needed:
        return
    if found:
        raise ToolkitError(
            f"{plan.name} is planned for {needed} GPUs of a node, and this machine has {found}",
            remedy=f"plan with --gpus {found}, or submit it with --submit",
        )
    if not any(True for pattern in DEVICES for _ in Path("/dev").glob(pattern)):
        raise ToolkitError(
            f"{plan.name} is planned for {accelerator.name}, and this machine has no GPU",
            remedy="start it there, or submit it with --submit; to try it on processors, plan with --cluster local-cpu",
        )


def _check_finetune(plan: Plan, files: Mapping[str, str]) -> None:
    import json

    config = json.loads(files["ds_config.json"]) if "ds_config.json" in files else None
    _of_recipes("finetune.checks").check(plan, plan.cluster.num_gpus, config, here=True)


def _check_pretrain(plan: Plan, files: Mapping[str, str]) -> None:
    import msgspec

    core = msgspec.json.decode(files["megatron_core.json"], type=_of_recipes("pretrain.config").CoreConfig)
    _of_recipes("pretrain.validity").check(plan, core, plan.cluster.num_gpus)
    if not _of_recipes("pretrain.tokens").is_prefix(plan.contract.dataset):
        _of_recipes("finetune.documents").check_file(plan.contract.dataset)


def _of_recipes(name: str) -> Any:
    """A module of the training programs, none of which imports torch before a run starts."""
    return importlib.import_module(f"recipes.{name}")
