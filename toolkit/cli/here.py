"""What this machine is, for commands that start something on it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.plan import Plan

DEVICES = ("nvidia[0-9]*", "dxg")  # where the driver's own tool is not in a container, they still are


def gpu_here() -> str:
    """The first GPU's name as the driver tells it, without the vendor's; empty where there is none."""
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    names = done.stdout.splitlines() if done.returncode == 0 else []
    return names[0].strip().removeprefix("NVIDIA ") if names else ""


def on_this_machine(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with this machine as the cluster, and a message that says so, where they name none."""
    if options.get("cluster") or options.get("accelerator"):
        return dict(options)
    name = gpu_here()
    told = name or "no GPU, its processors"
    click.echo(f"this machine: {told} (--cluster or --accelerator NAME for another one)", err=True)
    return dict(options) | ({"accelerator": name} if name else {"cluster": "local-cpu"})


def check_runs_here(plan: Plan) -> None:
    """Raises ToolkitError for a plan whose GPUs are plainly not here, before any process is started."""
    accelerator = plan.cluster.accelerator
    if accelerator.is_cpu or accelerator.vendor != "NVIDIA" or gpu_here():
        return
    if not any(True for pattern in DEVICES for _ in Path("/dev").glob(pattern)):
        raise ToolkitError(
            f"{plan.name} is planned for {accelerator.name}, and this machine has no GPU",
            remedy="start it there, or submit it with --submit; to try it on processors, plan with --cluster local-cpu",
        )
