"""Parts of a checkpoint that are each whole, and not of one moment of one run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from recipes import resume
from tests import finetune_runs
from tests.runtime.test_found import deepspeed, hugging_face
from toolkit import plan as plans
from toolkit.cli.ckpt import command
from toolkit.runtime import checkpoint, consistency, found
from toolkit.runtime.manifest import DataPosition, Manifest

PLAN = finetune_runs.tiny_plan()
STEP, SAMPLES = 12, 12 * finetune_runs.GLOBAL_BATCH
FACTS = {
    "samples_seen": SAMPLES,
    "tokens": SAMPLES * finetune_runs.SEQUENCE_LENGTH,
    "data": {"epoch": 3, "position": SAMPLES - 3 * 56, "seed": 1},
}


def run_of(folder: Path, change: Callable[[Path], None] = lambda path: None, **facts: Any) -> Path:
    """A run's folder with a plan and one checkpoint of the Trainer under DeepSpeed, which is whole by its sums."""
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(plans.dump(PLAN))
    path = hugging_face(checkpoint.begin(folder, STEP))
    deepspeed(path / f"global_step{STEP}")
    (path / "latest").write_text(f"global_step{STEP}")
    change(path)
    checkpoint.commit(path, resume.facts(PLAN) | {"step": STEP} | FACTS | facts)
    return folder


def told(folder: Path) -> list[tuple[str, str]]:
    (each,) = found.look(folder)
    assert checkpoint.newest_valid(folder) == each.path  # every sum is right
    return [(damage.file, damage.kind) for damage in each.damage()]


def test_a_whole_one(tmp_path: Path) -> None:
    assert told(run_of(tmp_path)) == []


@pytest.mark.parametrize(
    ("change", "file", "kind"),
    [
        (lambda path: (path / "rng_state_1.pth").unlink(), "rng_state_1.pth", "missing"),
        (
            lambda path: next(path.rglob("*rank_1_mp_rank_00_optim_states.pt")).unlink(),
            "zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "missing",
        ),
        (
            lambda path: shutil.copy(path / "rng_state_1.pth", path / "rng_state_2.pth"),
            "rng_state_2.pth",
            "inconsistent",
        ),
        (
            lambda path: (path / "trainer_state.json").write_text(json.dumps({"global_step": STEP - 1})),
            "trainer_state.json",
            "inconsistent",
        ),
    ],
    ids=["no-random-state", "no-shard", "one-rank-more", "another-step"],
)
def test_a_file_that_is_not_of_this_save(change: Callable[[Path], None], file: str, kind: str, tmp_path: Path) -> None:
    run_of(tmp_path, change)
    assert told(tmp_path) == [(file, kind)]
    assert not found.look(tmp_path)[0].is_valid()


@pytest.mark.parametrize(
    "facts",
    [
        {"samples_seen": SAMPLES + 16},
        {"tokens": FACTS["tokens"] + 1},
        {"data": {"epoch": 3, "position": 25}},
        {"data": {"epoch": 0, "position": 24}},
        {"data": {"epoch": 200, "position": 24}},
    ],
)
def test_samples_that_are_not_the_steps(facts: dict[str, Any], tmp_path: Path) -> None:
    assert set(told(run_of(tmp_path, **facts))) == {("manifest.json", "inconsistent")}


@given(
    batch=st.integers(1, 64),
    step=st.integers(1, 500),
    epoch_samples=st.integers(1, 300),
    left_out=st.sets(st.integers(0, 50), max_size=6),
    off=st.integers(-3, 3),
)
def test_every_position_that_a_run_can_have(
    batch: int, step: int, epoch_samples: int, left_out: set[int], off: int
) -> None:
    """Also with batches left out after a spike; a position beside it is found out in the first epoch."""
    gone = sorted(left_out)
    kept = [number for number in range(step + len(gone) + 1) if number not in left_out]
    epoch, position = divmod(kept[step] * batch, epoch_samples)
    facts = {"step": step, "samples_seen": step * batch, "more": {"skipped_batches": gone}}
    right = Manifest(**facts, data=DataPosition(epoch=epoch, position=position))  # type: ignore[arg-type]
    assert consistency._data(right) == []
    if epoch == 0 and off:
        wrong = Manifest(**facts, data=DataPosition(epoch=0, position=position + off))  # type: ignore[arg-type]
        assert [each.kind for each in consistency._data(wrong)] == ["inconsistent"]


def test_the_plan_beside_it_is_of_another_experiment(tmp_path: Path) -> None:
    """A start refuses; the checkpoint is whole, and is named as the newest valid one."""
    run_of(tmp_path)
    (tmp_path / "plan.json").write_text(plans.dump(finetune_runs.tiny_plan(learning_rate=1.0)))
    assert told(tmp_path) == [("plan.json", "contract")]
    done = CliRunner().invoke(command, ["verify", str(tmp_path)])
    assert done.exit_code == 0 and "learning_rate is 0.003 there and 1.0 here" in done.output


def test_what_others_have_committed_is_said_to_be_so(tmp_path: Path) -> None:
    """And what an elastic load of it would take: 8 ranks, each with all that the shards hold."""
    deepspeed(tmp_path / "global_step400")
    for path in deepspeed(tmp_path / "global_step420").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    done = CliRunner().invoke(command, ["verify", str(tmp_path)])
    assert "global_step400: looks whole, not committed by this toolkit, 3 files" in done.output
    assert "global_step420: broken, not committed by this toolkit, 3 files" in done.output
    assert done.output.count("host memory on a node of 8") == 1  # for the newest, not for every one again
    (row, _) = json.loads(CliRunner().invoke(command, ["verify", str(tmp_path), "--json"]).stdout)["checkpoints"]
    shards = sum(path.stat().st_size for path in (tmp_path / "global_step400").glob("*optim_states.pt"))
    assert not row["committed"] and row["elastic_bytes_per_node"] == 8 * shards == 8 * row["optimizer_bytes"]
    assert "host memory on a node of 8" in row["notes"][0]


def test_the_trainers_own_folders(tmp_path: Path) -> None:
    """A staging folder never renamed, a copy of another number, one without an optimizer, a rank without its state."""
    hugging_face(tmp_path / "checkpoint-300")
    hugging_face(tmp_path / "checkpoint-400").rename(tmp_path / "tmp-checkpoint-400")
    shutil.copytree(tmp_path / "checkpoint-300", tmp_path / "checkpoint-500")
    weights = hugging_face(tmp_path / "checkpoint-200")
    (weights / "optimizer.pt").unlink()
    sharded = hugging_face(tmp_path / "checkpoint-100", ranks=3)
    deepspeed(sharded / "global_step100", ranks=4)
    (sharded / "latest").write_text("global_step100")
    wrong = {each.name: [(d.file, d.kind) for d in each.damage()] for each in found.look(tmp_path)}
    assert wrong == {
        "checkpoint-100": [("rng_state_3.pth", "missing")],
        "checkpoint-200": [("optimizer.pt", "unknown")],
        "checkpoint-300": [],
        "tmp-checkpoint-400": [(".", "missing")],
        "checkpoint-500": [("trainer_state.json", "inconsistent")],
    }
    newest = found.newest_valid(found.look(tmp_path))
    assert newest is not None and newest.name == "checkpoint-300"
