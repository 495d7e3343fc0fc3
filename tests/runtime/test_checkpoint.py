"""Only whole checkpoints count; pruning never takes the last one."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, durable


def make(folder: Path, step: int, whole: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "weights").write_text(str(step))
    if whole:
        checkpoint.commit(path, {"step": step})
    return path


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (1000, 20, 300):
        make(tmp_path, step)
    (tmp_path / "checkpoint-old").mkdir()
    (tmp_path / "model").mkdir()
    assert [checkpoint.facts(path)["step"] for path in checkpoint.complete(tmp_path)] == [20, 300, 1000]
    assert checkpoint.complete(tmp_path / "nowhere") == []


def test_a_torn_checkpoint_is_passed_over_and_set_aside(tmp_path: Path) -> None:
    make(tmp_path, 10)
    make(tmp_path, 20, whole=False)
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-10"]
    assert [path.name for path in checkpoint.set_aside_incomplete(tmp_path)] == ["incomplete-20"]
    assert (tmp_path / "incomplete-20" / "weights").read_text() == "20"
    make(tmp_path, 20, whole=False)  # torn at the same step again
    checkpoint.set_aside_incomplete(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "incomplete-20", "latest"]


@settings(max_examples=25, deadline=None)
@given(steps=st.sets(st.integers(1, 10_000), max_size=8), keep=st.integers(-1, 5))
def test_pruning_keeps_the_newest(tmp_path_factory: pytest.TempPathFactory, steps: set[int], keep: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    for step in steps:
        make(folder, step)
    checkpoint.prune(folder, keep)
    left = [checkpoint.facts(path)["step"] for path in checkpoint.complete(folder)]
    assert left == sorted(steps)[-max(1, keep) :]
    assert len(list(folder.glob("checkpoint*"))) == len(left)


def test_a_save_at_the_last_step_that_is_also_an_interval_leaves_one(tmp_path: Path) -> None:
    """1000 % 100 == 0 with keep 1: the same path twice must not delete itself."""
    make(tmp_path, 900)
    path = make(tmp_path, 1000)
    for _ in range(2):
        checkpoint.commit(path, {"step": 1000})
        checkpoint.prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["checkpoint-1000"]
    assert (tmp_path / "latest").read_text() == "checkpoint-1000\n"


def test_torn_ones_do_not_count_as_kept(tmp_path: Path) -> None:
    make(tmp_path, 10)
    make(tmp_path, 20, whole=False)
    assert checkpoint.prune(tmp_path, 1) == []


def test_the_finished_marker(tmp_path: Path) -> None:
    assert checkpoint.finished(tmp_path) is None
    checkpoint.mark_finished(tmp_path, {"step": 60, "loss": float("nan")})
    found = checkpoint.finished(tmp_path)
    assert found is not None and 0 <= time.time() - found.pop("ended_unix") < 100
    assert found == {"step": 60, "loss": None}
    (tmp_path / checkpoint.FINISHED).write_text("{")
    with pytest.raises(ToolkitError, match="cannot read"):
        checkpoint.finished(tmp_path)


def test_a_checkpoint_whose_deletion_was_interrupted_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker goes first: a job that is killed while it deletes leaves no checkpoint that looks whole."""
    for step in (1, 2):
        make(tmp_path, step)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable, "remove_tree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.prune(tmp_path, 1)
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-2"]
