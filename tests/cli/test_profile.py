"""toolkit profile: real runs of both training programs on one process, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.registry.calibrations import load_calibration

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = {"tiny": (804_992, 4.0, 8.0), "tiny-pretrain": (836_736, 2.0, 12.0)}
# parameters, their bytes each, bytes of optimizer and master each: fp32 Adam under autocast; 16-bit weights of
# megatron-core with fp32 master and Adam, the vocabulary of 260 padded to 384 in both embeddings (+ 2 x 124 x 128)
assert PARAMETERS["tiny-pretrain"][0] == PARAMETERS["tiny"][0] + 2 * 124 * 128

INTERPRETER = sys.executable  # beside which toolkit launch finds torchrun; what is forked has another


def profile(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "profile", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=quiet | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("recipe", PARAMETERS)
def test_a_real_run_is_measured_and_its_calibration_can_be_used(recipe: str, tmp_path: Path) -> None:
    arguments = (recipe, "--cluster", "local-cpu", "--steps", "3", "--warm-up", "1", "--out", "here")
    done = profile(*arguments, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    count, parameter, state = PARAMETERS[recipe]
    memory = {row["name"]: row["measured_bytes"] for row in found["memory"]}
    assert memory["parameters"] == count * parameter
    assert memory["optimizer"] == pytest.approx(count * state, rel=1e-3)  # a step counter of each tensor besides
    assert found["gradients_at_update_bytes"] == 4 * count
    assert memory["total, peak"] > memory["parameters"] + memory["optimizer"] + found["gradients_at_update_bytes"]
    assert (found["steps"], found["tokens_per_step"], found["kind"]) == (3, 16 * 128, "cpu")
    step = found["step"]
    assert 0.0 < step["fastest_seconds"] <= step["measured_seconds"] <= step["slowest_seconds"]
    assert all(row["measured_seconds"] > 0.0 for row in step["parts"])
    assert 0.0 < found["data_loading_share"] < 0.5
    assert {row["operation"] for row in found["kernels"]["collective_lines"]} == {"all_reduce", "all_gather"}
    assert any("say nothing about any GPU" in note for note in found["notes"])
    read = load_calibration(str(tmp_path / "here" / "calibration.toml"))
    for name, row in found["calibration"]["measured"].items():
        assert (read[name], read.coefficients[name].status) == (row["value"], "measured")
    assert json.loads((tmp_path / "here" / "profile.json").read_text()) == found
    again = profile(*arguments, folder=tmp_path)
    assert again.returncode == 2 and "exist" in again.stderr and "--force" in again.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_table_of_gpu_check_reads_a_run_and_its_profile(tmp_path: Path) -> None:
    launch = ("launch", "tiny-pretrain", "--cluster", "local-cpu", "--gpus", "1", "--out", "tiny-pretrain")
    more = ("--", "--max-steps", "4", "--output-dir", str(tmp_path / "tiny-pretrain" / "run"))
    run = [INTERPRETER, "-m", "toolkit", *launch, *more]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    shape = ("--cluster", "local-cpu", "--steps", "2", "--warm-up", "1")
    done = profile("tiny-pretrain", *shape, "--out", "profile-tiny-pretrain", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    table = [sys.executable, "-m", "recipes.gpu_table", str(tmp_path), "tiny-pretrain"]
    head, rule, row = subprocess.run(table, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert "1 x cpu" in row and "megatron" in row and re.search(r"5\.56 to \d\.\d\d in 4 steps", row)


def test_gpu_check_without_a_gpu_says_so() -> None:
    script = ["bash", str(ROOT / "scripts" / "gpu-check"), str(Path(sys.executable).parent)]
    done = subprocess.run(script, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1 and "no GPU here" in done.stderr and done.stdout == ""


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_recipe_with_fewer_steps_than_asked_for_is_a_sentence(tmp_path: Path) -> None:
    done = profile("tiny-pretrain", "--cluster", "local-cpu", "--steps", "58", "--warm-up", "3", folder=tmp_path)
    assert done.returncode == 2 and "ended before step 63" in done.stderr and "fewer --steps" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "profiles").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tinny",), "tiny"),
        (("nothing.json",), "cannot read"),
        (("tiny", "--cluster", "local-cpu", "--calibration", "./none.toml"), "cannot be read"),
        (("tiny", "--cluster", "local-cpu", "--framework", "megatron"), "does not use megatron"),
        (("pretrain-llama-3-8b", "--accelerator", "h100"), "GiB"),
        (("tiny", "--cluster", "local-cpu", "--steps", "0"), "--steps"),
    ],
)
def test_what_is_refused_before_anything_runs(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = profile(*arguments, folder=tmp_path)
    assert done.returncode in (1, 2) and message in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == "" and not list(tmp_path.iterdir())


def test_a_plan_has_its_settings_already(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    done = profile("plan.json", "--precision", "fp32", folder=tmp_path)
    assert done.returncode == 2 and "is a plan already, --precision would need another one" in done.stderr
