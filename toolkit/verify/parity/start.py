"""Start a training program on a plan with as many real processes as the plan has GPUs, and trace it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from toolkit.emit.bundle import bundle
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import child
from toolkit.verify.parity.traces import Run, read

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NEEDED = ("plan.json", "ds_config.json", "megatron_core.json")
WRONG_RATE = re.compile(r"error: (step (\d+) was made with learning rate \S+, the contract's schedule has \S+ there)")


class Refused(ToolkitError):
    """The program itself found at ``step`` that it does not do what the contract says, and ended: a finding."""

    def __init__(self, step: int, quantity: str, said: str) -> None:
        self.step, self.quantity, self.said = step, quantity, said
        super().__init__(said, remedy="the program refused to go on: this is a fault of the program, not of the plan")


def write(plan: Plan, folder: Path) -> None:
    """The files that the program reads; raises ToolkitError for what no program can run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in bundle(plan, str(folder)).items():
        if name in NEEDED:
            (folder / name).write_text(text)


def start(
    plan: Plan,
    folder: Path,
    steps: int,
    limit: float,
    program: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> Run:
    """Write the plan's files, run ``steps`` steps, return what they traced.

    ``program`` is the module to run and its first arguments: the plan's own training program, unless a test puts a
    fault into it; ``more`` are further arguments of it. Raises Refused where the program finds a fault in itself (a
    learning rate that is not the contract's), and ToolkitError where the run fails otherwise or takes longer than
    ``limit`` seconds.
    """
    write(plan, folder)
    module, *first = program or (f"recipes.{plan.program}.train",)
    workers = plan.cluster.num_gpus
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}") if workers > 1 else ()
    command = [sys.executable, *launcher, "-m", module, *first, *arguments(folder, steps, more)]
    try:
        done = child.run(command, environment(), limit)
    except subprocess.TimeoutExpired as error:
        raise ToolkitError(
            f"{_name(plan)} took more than {limit:g} s", remedy="give a larger --time-limit, or fewer --steps"
        ) from error
    return outcome(plan, folder, done.returncode, done.stderr)


def arguments(folder: Path, steps: int, more: tuple[str, ...] = ()) -> list[str]:
    """What the program is told: the plan, so many steps, no checkpoints, a trace."""
    told = ["--plan", folder / "plan.json", "--max-steps", steps, "--save-steps", 10**9, "--trace", folder / "trace"]
    return [*map(str, told), *more]


def environment() -> dict[str, str]:
    """Variables for the program: those here, without what a launcher or wandb set, and with the recipes to be found."""
    quiet = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB_") and name not in LAUNCHER
    }
    quiet |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    root = str(Path(__file__).resolve().parents[3])  # where the recipes and the tests are
    quiet["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [quiet.get("PYTHONPATH")])])
    return quiet


def outcome(plan: Plan, folder: Path, code: int, said: str) -> Run:
    """The run of a program that ended with ``code`` and wrote ``said`` to stderr; raises as :func:`start` does."""
    refusal = WRONG_RATE.search(said) if code else None
    if refusal:
        raise Refused(int(refusal[2]), "learning_rate", refusal[1])
    if code or not (folder / "trace").is_dir():
        raise child.failure(_name(plan), code, said)
    return read(folder)


def _name(plan: Plan) -> str:
    workers = plan.cluster.num_gpus
    return f"{workers} process{'es' if workers > 1 else ''} of {plan.program}"
