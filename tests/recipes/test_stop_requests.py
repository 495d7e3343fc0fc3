"""A request to stop at the worst moments of both programs: in an evaluation, in a save, while tokens are prepared."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_while_tokens_are_prepared_it_leaves_at_once(plans: dict[str, Path], tmp_path: Path) -> None:
    done = start(plans["tiny"], tmp_path, "recipes.finetune.train", "recipes.finetune.data", "store", 1)
    assert done.returncode == STOPPED, done.stdout + done.stderr
    assert "stopped before the first step (SIGUSR1): nothing is lost" in done.stdout
    assert not (tmp_path / "steps.jsonl").exists() or not telemetry.read_steps(tmp_path)
    assert json.loads((tmp_path / "outcome.json").read_text())["state"] == "stopped"
