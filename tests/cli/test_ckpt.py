"""``toolkit ckpt`` on folders of frameworks, on runs of our own, and in durable storage."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.runtime.test_found import deepspeed, hugging_face
from toolkit.cli import ckpt_rows
from toolkit.cli.ckpt import command
from toolkit.errors import NoFeasiblePlan, ToolkitError
from toolkit.runtime import checkpoint, found, storage
from toolkit.runtime.lease import Lease


def call(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def run_of(folder: Path, *steps: int) -> Path:
    for step in steps:
        path = checkpoint.begin(folder, step)
        (path / "state.bin").write_bytes(bytes([step % 256]) * 100)
        checkpoint.commit(path, {"step": step})
    return folder


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """The newest one empty, ``latest`` lost."""
    deepspeed(tmp_path / "global_step400")
    for path in deepspeed(tmp_path / "global_step420").iterdir():
        path.write_bytes(b"")
    return tmp_path


def test_list_marks_the_broken_one_and_tells_what_to_write(cut: Path) -> None:
    text = call("list", cut).output
    assert (
        "global_step420       deepspeed" in text and "broken: bf16_zero_pp" in text and "0 bytes (and 2 more)" in text
    )
    assert "newest complete: global_step400; toolkit ckpt verify " in text and "complete (it has no sums)" in text
    assert f"echo global_step400 > {cut}/latest" in text
    answer = json.loads(call("list", cut, "--json").output)
    assert answer["newest_valid"] == "global_step400"
    assert [row["valid"] for row in answer["checkpoints"]] == [True, False]


def test_latest_picks_tells_and_writes(cut: Path) -> None:
    done = call("latest", cut)
    assert done.exit_code == 0 and done.stdout == f"{cut}/global_step400\n"
    assert "passed over global_step420: truncated" in done.stderr and "latest is missing" in done.stderr
    assert not (cut / "latest").exists()
    call("latest", cut, "--write")
    assert (cut / "latest").read_text() == "global_step400\n"
    assert json.loads(call("latest", cut, "--json").output)["pointer"]["holds"] == "global_step400"


def test_a_save_that_is_under_way_is_no_finding(tmp_path: Path) -> None:
    """Beside a live run; where nobody writes, the same folder is what a kill has left."""
    half = checkpoint.begin(run_of(tmp_path, 1), 2)
    (half / "model.safetensors").write_bytes(b"half of")
    with Lease(tmp_path):
        done = call("verify", tmp_path)
        assert done.exit_code == 0, done.output
        assert "checkpoint-2: not committed: being saved, or deleted, by process " in done.output
        assert "broken" not in done.output + call("list", tmp_path).output
        answer = json.loads(call("verify", half, "--json").output)["checkpoints"][0]
        assert answer["under_way"].startswith("process ") and not answer["valid"]
        (tmp_path / "checkpoint-1" / "state.bin").write_bytes(b"torn")
        done = call("verify", tmp_path)
        assert isinstance(done.exception, NoFeasiblePlan) and "1 of 2 broken: checkpoint-1" in str(done.exception)
        shutil.rmtree(tmp_path / "checkpoint-1")
        assert call("list", tmp_path).exit_code == 0  # its first save
    done = call("verify", tmp_path)
    assert isinstance(done.exception, NoFeasiblePlan) and "1 of 1 broken: checkpoint-2" in str(done.exception)
    assert "the save was not finished" in done.output


def test_what_a_run_commits_while_it_is_looked_at_is_valid(tmp_path: Path) -> None:
    path = checkpoint.begin(run_of(tmp_path, 1), 2)
    (path / "state.bin").write_bytes(b"2")
    seen = found.look(tmp_path)[-1]
    checkpoint.commit(path, {"step": 2})
    (path / "model.safetensors").write_bytes(b"an extra one that is torn")
    told = ckpt_rows.row(seen, deep=True)
    assert (seen.kind, told["kind"], told["valid"], told["under_way"]) == ("huggingface", "toolkit", True, "")


def test_verify_of_one_checkpoint_sends_to_the_run_for_another(cut: Path) -> None:
    with pytest.raises(ToolkitError) as told:
        CliRunner().invoke(command, ["verify", f"{cut}/global_step420/"], catch_exceptions=False)
    assert f"toolkit ckpt latest {cut} tells" in str(told.value)


def test_prune_never_takes_the_newest_valid_one(cut: Path) -> None:
    deepspeed(cut / "global_step380")
    assert json.loads(call("prune", cut, "--keep", 1, "--dry-run", "--json").output)["deleted"] == ["global_step380"]
    assert (cut / "global_step380").exists()
    assert call("prune", cut, "--keep", 1).output == "deleted global_step380\n"
    for _ in range(2):
        assert call("prune", cut, "--keep", 1, "--broken").output == "nothing to delete\n"
    assert sorted(path.name for path in cut.iterdir()) == ["global_step400", "global_step420"]


def test_prune_keeps_what_a_pointer_names_and_deletes_older_broken_ones_when_asked(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        deepspeed(tmp_path / f"global_step{step}")
    (tmp_path / "global_step2" / "mp_rank_00_model_states.pt").unlink()
    (tmp_path / "latest").write_text("global_step1")
    done = json.loads(call("prune", tmp_path, "--keep", 1, "--broken", "--json").output)
    assert done["deleted"] == ["global_step3", "global_step2"]
    assert done["kept"] == ["global_step1", "global_step4"]


def test_the_same_step_twice_and_keep_one_leaves_one(tmp_path: Path) -> None:
    """The last step is a save interval too: 1000 % 100 == 0."""
    run_of(tmp_path, *range(100, 1001, 100), 1000)
    assert call("prune", tmp_path, "--keep", 1).exit_code == 0
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-1000"]


def test_keep_every(tmp_path: Path) -> None:
    run_of(tmp_path, *range(100, 1100, 100))
    call("prune", tmp_path, "--keep", 2, "--keep-every", 500)
    assert [path.name for path in checkpoint.complete(tmp_path)] == [
        "checkpoint-500",
        "checkpoint-900",
        "checkpoint-1000",
    ]


def test_verify_names_files_and_ends_with_one(tmp_path: Path) -> None:
    run_of(tmp_path, 1, 2)
    assert call("verify", tmp_path).exit_code == 0
    state = tmp_path / "checkpoint-2" / "state.bin"
    state.write_bytes(b"\x03" + state.read_bytes()[1:])
    assert call("verify", tmp_path, "--quick").exit_code == 0  # the size is right
    done = call("verify", tmp_path)
    assert isinstance(done.exception, ToolkitError) and done.exception.exit_code == 1
    assert "flipped    state.bin: SHA-256" in done.output
    assert call("verify", tmp_path / "checkpoint-1").exit_code == 0
    assert call("latest", tmp_path).stdout == f"{tmp_path}/checkpoint-1\n"


def test_a_list_none_of_which_is_valid_ends_with_one(tmp_path: Path) -> None:
    run_of(tmp_path, 1, 2)
    assert call("list", tmp_path).exit_code == 0
    for step in (2, 1):
        (tmp_path / f"checkpoint-{step}" / "state.bin").write_bytes(b"cut")
        for words in ((), ("--json",)):
            done = call("list", tmp_path, *words)
            assert "checkpoint-1" in done.stdout and "checkpoint-2" in done.stdout
            if step == 1:
                assert isinstance(done.exception, ToolkitError) and done.exception.exit_code == 1
                assert "none of the 2 checkpoints" in str(done.exception) and "ckpt verify" in str(done.exception)
            else:
                assert done.exit_code == 0


def test_what_is_not_there(tmp_path: Path) -> None:
    assert isinstance(call("latest", tmp_path).exception, ToolkitError)
    assert isinstance(call("list", tmp_path / "nowhere").exception, ToolkitError)
    assert call("list", tmp_path).output == f"no checkpoints in {tmp_path}\n"


def test_the_trainer_is_told_to_move_what_it_would_take(tmp_path: Path) -> None:
    hugging_face(tmp_path / "checkpoint-1")
    (hugging_face(tmp_path / "checkpoint-2") / "trainer_state.json").unlink()
    assert f"mv {tmp_path}/checkpoint-2 {tmp_path}/incomplete-checkpoint-2" in call("latest", tmp_path).stderr


def test_a_running_job_prunes_by_itself(tmp_path: Path) -> None:
    run_of(tmp_path, 1, 2, 3)
    with Lease(tmp_path, {"SLURM_JOB_ID": "12"}):
        error = call("prune", tmp_path).exception
        assert isinstance(error, ToolkitError) and "(job 12)" in str(error)
    assert call("prune", tmp_path).output == "deleted checkpoint-1\n"


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_durable_storage(tmp_path: Path, scheme: str) -> None:
    run = run_of(tmp_path / "run", 1, 2, 3)
    url = f"file://{tmp_path}/far" if scheme == "file" else f"memory://{tmp_path.name}"
    for step in (1, 2, 3):
        storage.upload(run / f"checkpoint-{step}", url)
    assert json.loads(call("list", url, "--json").output)["newest_valid"] == "checkpoint-3"
    assert call("verify", url).exit_code == 0
    assert call("prune", url).output == "deleted checkpoint-1\n"
    assert call("latest", url).stdout == f"{url}/checkpoint-3\n"


@pytest.mark.parametrize("content", ['{"schema": 99, "files": 3}', '{"schema": 99}'])
def test_a_checkpoint_of_a_newer_version_is_not_used_and_not_deleted(content: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, 1, 2, 3)
    (run / "checkpoint-1" / "manifest.json").write_text(content)
    shown = json.loads(call("list", run, "--json").stdout)["checkpoints"][0]
    assert not shown["valid"] and [each["kind"] for each in shown["damage"]] == ["later"]
    told = call("prune", run, "--broken", "--keep", "1").stdout
    assert "kept checkpoint-1: it is of another version" in told and "deleted checkpoint-2" in told
    assert (run / "checkpoint-1").is_dir()


def test_the_folder_of_a_plan_stands_for_its_run(tmp_path: Path) -> None:
    run_of(tmp_path / "run", 1, 2)
    (tmp_path / "plan.json").write_text("{}")
    shown = call("list", tmp_path)
    assert "checkpoint-2" in shown.stdout and f"the run in {tmp_path} is {tmp_path / 'run'}" in shown.stderr
    assert call("latest", tmp_path).stdout.splitlines() == [str(tmp_path / "run" / "checkpoint-2")]


def test_prune_deletes_no_good_one_for_newer_ones_that_are_damaged(tmp_path: Path) -> None:
    """Whose sizes are right: a flipped byte shows in the sums only."""
    for step in (1, 2, 3, 4):
        path = checkpoint.begin(tmp_path, step)
        (path / "weights").write_text("right")
        checkpoint.commit(path, {"step": step})
    for step in (3, 4):
        (tmp_path / f"checkpoint-{step}" / "weights").write_text("wrong")
    assert call("prune", tmp_path, "--keep", 1).output == "deleted checkpoint-1\n"
    assert call("latest", tmp_path).stdout == f"{tmp_path}/checkpoint-2\n"


def test_a_deletion_that_was_killed_is_ended_by_the_next_and_is_in_the_way_of_none(cut: Path) -> None:
    """A run has made the step again since; what was left of it is listed nowhere."""
    deepspeed(cut / "global_step380")
    for name in ("global_step380", "global_step7"):
        rest = cut / f".deleting-{name}"
        rest.mkdir()
        (rest / "half").write_bytes(b"x")
    call("prune", cut, "--keep", 1, "--dry-run")
    assert len(list(cut.glob(".deleting-*"))) == 2
    assert call("prune", cut, "--keep", 1).output == "deleted global_step380\n"
    assert list(cut.glob(".deleting-*")) == [] and not (cut / "global_step380").exists()
