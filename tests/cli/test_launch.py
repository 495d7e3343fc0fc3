"""``toolkit launch``: files first, then the script; nothing that differs is overwritten."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from recipes import program
from recipes.finetune.documents import read_documents
from tests import finetune_runs
from toolkit import plan as plans
from toolkit.cli.here import check_runs_here, on_this_machine
from toolkit.cli.launch import command
from toolkit.emit.bundle import bundle
from toolkit.errors import NoFeasiblePlan, ToolkitError
from toolkit.registry.clusters import resolve_cluster
from toolkit.registry.recipes import all_recipes, load_recipe
from toolkit.runtime.telemetry import read_steps


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "made" / "plan.json"
    path.parent.mkdir()
    path.write_text(plans.dump(finetune_runs.tiny_plan()))
    return path


def launch(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(command, ["--json", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_dry_run_writes_the_files_and_says_the_command(plan_file: Path) -> None:
    document = launch(str(plan_file), "--dry-run", "--", "--max-steps", "3")
    script = plan_file.parent / "launch.sh"
    assert document["command"] == ["bash", str(script), "--max-steps", "3"]
    assert not document["started"]
    assert os.access(script, os.X_OK)
    assert json.loads((plan_file.parent / "ds_config.json").read_text())["train_batch_size"] == 16


@pytest.mark.parametrize("start", ["--dry-run", "--submit"])
def test_options_that_the_program_would_refuse_are_refused_before_anything_is_written(
    plan_file: Path, start: str
) -> None:
    words = ("--keep", "0", "--sve-steps=5", "--hang-at-most", "3", "--skip-batches", "61")
    with pytest.raises(ToolkitError) as found:
        launch(str(plan_file), start, "--", *words)
    said = str(found.value)
    assert "--keep is '0'" in said and "did you mean --save-steps?" in said and "--hang-at-most 3 is less" in said
    with pytest.raises(ToolkitError, match="--skip-batches is 61, the run has 60"):
        launch(str(plan_file), start, "--", *words[-2:])
    assert [path.name for path in plan_file.parent.iterdir()] == ["plan.json"]


def test_twice_is_as_good_as_once_but_edited_files_are_kept(plan_file: Path) -> None:
    launch(str(plan_file), "--dry-run")
    launch(str(plan_file), "--dry-run")
    edited = plan_file.parent / "ds_config.json"
    edited.write_text("{}")
    with pytest.raises(ToolkitError, match="ds_config.json exists"):
        launch(str(plan_file), "--dry-run")
    assert edited.read_text() == "{}"
    launch(str(plan_file), "--dry-run", "--force")
    assert json.loads(edited.read_text())["train_batch_size"] == 16


def test_another_folder(plan_file: Path, tmp_path: Path) -> None:
    document = launch(str(plan_file), "--dry-run", "--out", str(tmp_path / "there"))
    assert document["out"] == str(tmp_path / "there")
    assert (tmp_path / "there" / "plan.json").read_text() == plan_file.read_text()


def test_without_a_scheduler(plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolkitError, match="no sbatch on this machine"):
        launch(str(plan_file), "--submit")


def test_a_plan_is_not_planned_again(plan_file: Path) -> None:
    with pytest.raises(ToolkitError, match="is a plan already"):
        launch(str(plan_file), "--dry-run", "--gpus", "4")


def test_bad_files_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot read"):
        launch(str(tmp_path / "none.json"), "--dry-run")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ToolkitError, match="is not a plan"):
        launch(str(tmp_path / "other.json"), "--dry-run")
    with pytest.raises(ToolkitError, match="--json is for"):
        launch(str(tmp_path / "other.json"))


def test_a_machine_without_gpus_plans_for_its_processors_and_starts_nothing_for_gpus(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no driver's tool there
    assert on_this_machine({"cluster": None, "accelerator": None, "gpus": "2"})["cluster"] == "local-cpu"
    assert "no GPU, its processors" in capsys.readouterr().err
    for named in ({"cluster": "dgx-h100"}, {"accelerator": "a100"}):
        assert on_this_machine(named) == named
    here = plans.load(plan_file.read_bytes())
    check_runs_here(here, bundle(here, str(tmp_path)))
    gpus = resolve_cluster("2", accelerator="h100")
    if not list(Path("/dev").glob("nvidia[0-9]*")):  # else it may well run here
        with pytest.raises(ToolkitError, match="this machine has no GPU"):
            check_runs_here(msgspec.structs.replace(here, cluster=gpus), {})


def test_the_plan_is_told_before_it_starts(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [*LOCAL, "--dry-run", "--out", str(tmp_path)], catch_exceptions=False)
    assert "tiny@1 on 1 x 2 cpu: deepspeed zero2 dp2" in done.stderr and "(fits)" in done.stderr


LOCAL = ("tiny", "--cluster", "local-cpu", "--gpus", "2", "--framework", "deepspeed", "--zero", "2")


def test_a_recipe_is_planned_for_the_cluster(tmp_path: Path) -> None:
    document = launch(*LOCAL, "--dry-run", "--out", str(tmp_path / "run"))
    made = plans.load((tmp_path / "run" / "plan.json").read_bytes())
    assert (made.recipe, made.strategy.dp, made.strategy.zero_stage) == ("tiny@1", 2, 2)
    assert made.contract == load_recipe("tiny").contract
    assert document["command"] == ["bash", str(tmp_path / "run" / "launch.sh")]


def test_a_dry_run_plans_what_would_start_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("toolkit.cli.here.gpus_here", list)
    done = CliRunner().invoke(command, ["tiny", "--gpus", "2", "--dry-run", "--out", str(tmp_path)])
    assert done.exit_code == 0 and "tiny@1 on 1 x 2 cpu: " in done.stderr, done.output
    there = ["tiny", "--gpus", "2", "--dry-run", "--submit", "--out", str(tmp_path / "there")]
    assert "on 1 x 2 h100" in CliRunner().invoke(command, there).stderr


def test_the_script_of_a_plan_for_gpus_says_that_there_are_none(tmp_path: Path) -> None:
    launch("tiny", "--cluster", "dgx-h100", "--gpus", "2", "--dry-run", "--out", str(tmp_path))
    starters = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    if not any(True for name in ("nvidia[0-9]*", "dxg", "kfd", "dri/renderD*") for _ in Path("/dev").glob(name)):
        done = subprocess.run(
            ["bash", str(tmp_path / "launch.sh")], capture_output=True, text=True, env=os.environ | {"PATH": starters}
        )
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.splitlines() == [
            "error: the plan needs 2 GPUs per node, this machine has none",
            "  start it where they are; to try it on this machine's processors, plan again with --cluster local-cpu",
        ]


def test_unknown_recipes_and_impossible_wishes(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="did you mean tiny"):
        launch("tinny", *LOCAL[1:], "--dry-run", "--out", str(tmp_path))
    with pytest.raises(NoFeasiblePlan):
        launch(*LOCAL, "--micro-batch", "5", "--dry-run", "--out", str(tmp_path))
    with pytest.raises(ToolkitError, match="--gpus is missing"):
        launch("tiny", "--cluster", "local-cpu", "--dry-run", "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_example_of_ones_own_conversations_is_a_recipe(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "recipes" / "finetune" / "README.md").read_text()
    (block,) = (each for each in readme.split("```") if "my-chats.toml" in each)
    lines = block.replace("-- --max-steps 2", "--cluster local-cpu --dry-run")
    starters = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = os.environ | {"PATH": starters}
    subprocess.run(["bash", "-ec", lines], cwd=tmp_path, env=environment, capture_output=True, check=True)
    made = plans.load((tmp_path / "runs" / "my-chats" / "plan.json").read_bytes()).contract
    assert (made.completion_only, made.chat_template) == (True, "chatml")
    assert len(list(read_documents(str(tmp_path / "chats.jsonl")))) == 2


@pytest.mark.slow
def test_a_recipe_is_planned_emitted_and_trained_by_one_command(tmp_path: Path) -> None:
    start = [sys.executable, "-m", "toolkit", "launch", *LOCAL, "--out", str(tmp_path / "run")]
    environment = finetune_runs.environment(PATH="/usr/bin:/bin")  # torchrun is found beside the interpreter
    done = subprocess.run([*start, "--", "--max-steps", "3"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [step.step for step in read_steps(tmp_path / "run" / "run")] == [1, 2, 3]
    assert done.stdout.splitlines()[-1] == program.ended_early(3, 60)
    assert (tmp_path / "run" / "run" / "checkpoint-3").is_dir()


def test_another_global_batch_is_told_with_old_and_new_values_and_gets_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, [*LOCAL, "--global-batch", "32", "--dry-run"], catch_exceptions=False)
    assert "global batch 16 -> 32" in done.stderr and "learning rate 0.003 -> 0.00424264" in done.stderr
    made = plans.load((tmp_path / "runs" / "tiny-batch32" / "plan.json").read_bytes())
    assert (made.contract.global_batch_size, made.contract.total_steps) == (32, 30)


def test_nothing_without_data_is_started_or_submitted(tmp_path: Path) -> None:
    for way in ("--submit", "--local"):
        with pytest.raises(ToolkitError, match="names no data to train on"):
            CliRunner().invoke(
                command,
                ["pretrain-llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16x8", way, "--out", str(tmp_path)],
                catch_exceptions=False,
            )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", ["tiny", "tiny-dpo", "tiny-pretrain"])
def test_what_the_program_would_refuse_is_refused_before_anything_is_written(recipe: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.jsonl")
    arguments = [recipe, "--cluster", "local-cpu", "--gpus", "1", "--dataset", missing, "--out", str(tmp_path / "run")]
    with pytest.raises(ToolkitError, match=r"none\.jsonl.* does not exist"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert not list(tmp_path.iterdir())


def test_too_few_gpus_are_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\necho NVIDIA H100 80GB HBM3\necho NVIDIA H100 80GB HBM3\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:/usr/bin:/bin")
    arguments = ["tiny", "--cluster", "dgx-h100", "--gpus", "8", "--out", str(tmp_path / "run")]
    with pytest.raises(ToolkitError, match="planned for 8 GPUs of a node, and this machine has 2"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert not (tmp_path / "run").exists()


def test_every_recipe_can_be_launched(tmp_path: Path) -> None:
    for found in all_recipes():
        recipe = found.recipe
        cluster, gpus = recipe.reference.split()
        data = () if recipe.contract.dataset else ("--dataset", "sample")
        arguments = (recipe.name, "--cluster", cluster, "--gpus", gpus, *data, "--dry-run")
        document = launch(*arguments, "--out", str(tmp_path / recipe.name))
        made = plans.load((tmp_path / recipe.name / "plan.json").read_bytes())
        assert made.contract.global_batch_size == recipe.contract.global_batch_size
        assert document["command"] == ["bash", str(tmp_path / recipe.name / "launch.sh")]
