"""Starts the recipe's program with a stopwatch, and the kernel benchmark, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from toolkit.emit.bundle import bundle
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import child

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NEEDED = ("plan.json", "ds_config.json", "megatron_core.json")
APART = 2  # steps after the timed ones: one is taken apart, in one memory is counted


def program(plan: Plan, folder: Path, warm_up: int, steps: int, limit: float) -> dict[str, Any]:
    """What one process of the plan's own program did in ``steps`` steps after ``warm_up``.

    Raises ToolkitError where it fails, has fewer steps, or takes longer than ``limit`` seconds.
    """
    for name, text in bundle(plan, str(folder)).items():
        if name in NEEDED:
            (folder / name).write_text(text)
    last = warm_up + steps + APART
    report = folder / "steps.report.json"
    arguments = [report, warm_up, steps, f"recipes.{plan.program}.train", "--plan", folder / "plan.json"]
    arguments += ["--output-dir", folder / "run", "--max-steps", last, "--save-steps", 10**9]
    environment = _environment() | _one_gpu()
    said = _run(f"the {plan.program} program", ["recipes.profiled", *map(str, arguments)], environment, limit)
    if not report.exists():
        raise ToolkitError(
            f"{plan.name} ended before step {last}: {said}", remedy="give fewer --steps, the recipe has no more"
        )
    found: dict[str, Any] = json.loads(report.read_bytes())
    return found


def kernels(kind: str, precision: str, folder: Path, limit: float) -> dict[str, Any]:
    """Times of matrix products, memory traffic and collectives on a kind of device: cuda or cpu."""
    report = folder / "kernels.report.json"
    _run("the kernel benchmark", ["toolkit.runtime.kernels", kind, precision, str(report)], _environment(), limit)
    found: dict[str, Any] = json.loads(report.read_bytes())
    return found


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") and name not in LAUNCHER}
    root = str(Path(__file__).resolve().parents[2])  # where the recipes are
    kept["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def _one_gpu() -> dict[str, str]:
    """One process on a machine with several GPUs takes the first: the Trainer would spread over all of them."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}


def _run(what: str, module: list[str], environment: dict[str, str], limit: float) -> str:
    """The last line that the process wrote to its standard output."""
    try:
        done = child.run([sys.executable, "-m", *module], environment, limit)
    except subprocess.TimeoutExpired as error:
        raise ToolkitError(
            f"{what} took more than {limit:g} s", remedy="give a larger --time-limit, or fewer --steps"
        ) from error
    if done.returncode:
        raise child.failure(what, done.returncode, done.stderr)
    return (done.stdout.strip().splitlines() or [""])[-1]
