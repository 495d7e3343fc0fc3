"""``toolkit launch``: files first, then the script; nothing that differs is overwritten."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import finetune_runs
from toolkit import plan as plans
from toolkit.cli.launch import command
from toolkit.errors import ToolkitError


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
