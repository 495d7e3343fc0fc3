"""A request to stop at the worst moments of both programs: in an evaluation, in a save, while tokens are prepared."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from toolkit import plan as plan_module
from toolkit.runtime import checkpoint, telemetry
from toolkit.runtime.signals import STOPPED

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# the program, with one of its functions replaced by one that asks the process to stop first
ASKED = """
import importlib, os, signal, sys
owner, name, number = sys.argv[1:4]
module, _, kind = owner.partition(":")
holder = importlib.import_module(module)
holder = getattr(holder, kind) if kind else holder
function, calls = getattr(holder, name), [0]
def asked(*arguments, **keywords):
    calls[0] += 1
    if calls[0] == int(number):
        os.kill(os.getpid(), signal.SIGUSR1)
    return function(*arguments, **keywords)
setattr(holder, name, asked)
from recipes import program
sys.exit(importlib.import_module(sys.argv[4]).main(sys.argv[5:]))
"""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plan of one process for each program."""
    made = {}
    for recipe, pins in (("tiny", ("--framework", "ddp")), ("tiny-pretrain", ())):
        folder = tmp_path_factory.mktemp(recipe)
        command = [sys.executable, "-m", "toolkit", "plan", "--recipe", recipe, "--cluster", "local-cpu"]
        done = subprocess.run([*command, "--gpus", "1", "--out", folder, *pins], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        made[recipe] = folder / "plan.json"
    return made


def start(plan: Path, output: Path, program: str, owner: str, name: str, number: int, *more: str):
    words = [owner, name, str(number), program, "--plan", str(plan), "--output-dir", str(output), *more]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "TORCHELASTIC"))}
    return subprocess.run(
        [sys.executable, "-c", ASKED, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("recipe", "program", "owner", "name", "number", "more", "step"),
    [
        # the first evaluation is that before the first step, the second that after the fourth
        ("tiny", "finetune", "recipes.finetune.trainer:ContractTrainer", "_held_out_rows", 2, ("--eval-steps=4",), 4),
        ("tiny-pretrain", "pretrain", "recipes.pretrain.evaluation", "mean_loss", 1, ("--eval-steps=3",), 3),
        ("tiny-pretrain", "pretrain", "recipes.pretrain.checkpoints", "write", 1, ("--save-steps=2",), 2),
    ],
    ids=["evaluation", "evaluation of pretraining", "save"],
)
def test_it_stops_right_after_with_one_checkpoint(
    plans: dict[str, Path], tmp_path: Path, recipe: str, program: str, owner: str, name: str, number: int, more, step
) -> None:
    done = start(plans[recipe], tmp_path, f"recipes.{program}.train", owner, name, number, *more)
    assert done.returncode == STOPPED, done.stdout + done.stderr
    assert [record.step for record in telemetry.read_steps(tmp_path)] == list(range(1, step + 1))
    newest = checkpoint.newest_valid(tmp_path)
    assert newest is not None and newest.name == f"checkpoint-{step}"
    said = json.loads((tmp_path / "outcome.json").read_text())
    assert (said["state"], said["step"], said["reason"]) == ("stopped", step, signal.SIGUSR1.name)
    assert not (tmp_path / "FINISHED").exists()
    # what was asked for in an evaluation did not wait for its end
    assert step not in [record.step for record in telemetry.read_evaluations(tmp_path)]


@pytest.mark.parametrize(
    ("recipe", "program", "owner", "name"),
    [
        ("tiny", "finetune", "recipes.finetune.trainer:ContractTrainer", "_held_out_rows"),
        ("tiny-pretrain", "pretrain", "recipes.pretrain.evaluation", "mean_loss"),
    ],
    ids=["finetune", "pretrain"],
)
def test_in_the_last_evaluation_too_and_the_next_start_makes_it(
    plans: dict[str, Path], tmp_path: Path, recipe: str, program: str, owner: str, name: str
) -> None:
    plan = plan_module.load(plans[recipe].read_bytes(), recipe)
    contract = msgspec.structs.replace(plan.contract, total_steps=3, total_tokens=0.0, warmup_steps=1)
    short = tmp_path / "plan.json"
    short.write_text(plan_module.dump(msgspec.structs.replace(plan, contract=contract)))
    if (plans[recipe].parent / "megatron_core.json").exists():
        toolkit = [sys.executable, "-m", "toolkit", "emit", str(short), "--out", str(tmp_path), "--force"]
        assert subprocess.run(toolkit, capture_output=True).returncode == 0
    done = start(short, tmp_path, f"recipes.{program}.train", owner, name, 1)
    assert done.returncode == STOPPED, done.stdout + done.stderr
    assert "stopped in the last evaluation (SIGUSR1)" in done.stdout
    steps = [record.step for record in telemetry.read_steps(tmp_path)]
    assert json.loads((tmp_path / "outcome.json").read_text())["state"] == "stopped"
    assert not telemetry.read_evaluations(tmp_path) and not (tmp_path / "FINISHED").exists()
    assert steps == [1, 2, 3]
    done = start(short, tmp_path, f"recipes.{program}.train", owner, name, 99)
    assert done.returncode == 0 and (tmp_path / "FINISHED").exists(), done.stdout + done.stderr
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == steps  # none was made twice, and none more
    assert [record.step for record in telemetry.read_evaluations(tmp_path)] == steps[-1:]


def test_while_tokens_are_prepared_it_leaves_at_once(plans: dict[str, Path], tmp_path: Path) -> None:
    done = start(plans["tiny"], tmp_path, "recipes.finetune.train", "recipes.finetune.data", "store", 1)
    assert done.returncode == STOPPED, done.stdout + done.stderr
    assert "stopped before the first step (SIGUSR1): nothing is lost" in done.stdout
    assert not (tmp_path / "steps.jsonl").exists() or not telemetry.read_steps(tmp_path)
    assert json.loads((tmp_path / "outcome.json").read_text())["state"] == "stopped"
