"""The table of ``make gpu-check``: what runs of recipes and their profiles came to, for recipes/README.md."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from toolkit import plan as plans
from toolkit.runtime.telemetry import read_evaluations, read_run, read_steps
from toolkit.strategy import describe

HEAD = (
    "| recipe | GPUs | strategy | loss, first to last step | held-out | step, measured (predicted) | tokens/s |"
    " one GPU: step, measured (predicted) | one GPU: peak, measured (predicted) |",
    "|---|---|---|---|---|---|---|---|---|",
)


def row(folder: Path, recipe: str) -> str:
    """One recipe: its run in ``FOLDER/RECIPE``, its profile in ``FOLDER/profile-RECIPE``."""
    plan = plans.load((folder / recipe / "plan.json").read_bytes())
    run, steps = read_run(folder / recipe / "run"), read_steps(folder / recipe / "run")
    profile: dict[str, Any] = json.loads((folder / f"profile-{recipe}" / "profile.json").read_bytes())
    seconds = statistics.median(
        step.seconds for step in steps[len(steps) // 4 :]
    )  # what is compiled or warms up is over
    step, peak = profile["step"], profile["memory"][-1]
    cells = [
        f"`{recipe}`",
        f"{run.world_size} x {run.device}",
        describe(plan.strategy),
        f"{_loss(steps[0].loss)} to {_loss(steps[-1].loss)} in {steps[-1].step} steps",
        _held_out(folder / recipe),
        f"{1e3 * seconds:.1f} ms ({1e3 * plan.step.seconds:.1f})",
        f"{steps[-1].tokens / seconds:,.0f}",
        f"{1e3 * step['measured_seconds']:.1f} ms ({1e3 * step['predicted_seconds']:.1f})",
        f"{peak['measured_bytes'] / 2**20:.1f} MiB ({peak['predicted_bytes'] / 2**20:.1f})",
    ]
    return "| " + " | ".join(cells) + " |"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2f}"


def _held_out(folder: Path) -> str:
    """The finetune program tells each evaluation, the pretrain program the last one when it has finished."""
    found = read_evaluations(folder / "run")
    if found:
        return _loss(found[-1].held_out_loss)
    finished = folder / "run" / "FINISHED"
    return _loss(json.loads(finished.read_bytes()).get("held_out_loss")) if finished.exists() else "-"


def main(argv: list[str]) -> None:
    """Print the table."""
    folder, *recipes = argv
    print("\n".join([*HEAD, *(row(Path(folder), recipe) for recipe in recipes)]))


if __name__ == "__main__":
    main(sys.argv[1:])
