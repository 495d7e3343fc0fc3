"""Which checkpoints a plan may go on from."""

from pathlib import Path

import pytest

from recipes import resume
from tests import finetune_runs
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import checkpoint


def saved(folder: Path, made: Plan, step: int = 10, whole: bool = True) -> None:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    if whole:
        checkpoint.commit(path, resume.facts(made) | {"step": step})


def test_the_newest_whole_one(tmp_path: Path) -> None:
    made = finetune_runs.tiny_plan()
    assert resume.newest(made, tmp_path) is None
    for step, whole in ((5, True), (10, True), (15, False)):
        saved(tmp_path, made, step, whole)
    assert resume.newest(made, tmp_path) == "checkpoint-10"
    assert not (tmp_path / "checkpoint-15").exists()


def test_another_experiment_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, finetune_runs.tiny_plan())
    with pytest.raises(ToolkitError, match="belongs to another experiment"):
        resume.newest(finetune_runs.tiny_plan(learning_rate=1.0), tmp_path)


@pytest.mark.parametrize("other", [finetune_runs.tiny_plan(zero=3), finetune_runs.tiny_plan(ranks=4)])
def test_deepspeed_needs_its_stage_and_ranks(tmp_path: Path, other: Plan) -> None:
    saved(tmp_path, finetune_runs.tiny_plan())
    with pytest.raises(ToolkitError, match="was saved with framework deepspeed, zero_stage 2, world_size 2"):
        resume.newest(other, tmp_path)


def test_ddp_goes_on_with_any_number_of_ranks_but_not_as_deepspeed(tmp_path: Path) -> None:
    saved(tmp_path, finetune_runs.tiny_plan("ddp"))
    assert resume.newest(finetune_runs.tiny_plan("ddp", ranks=4), tmp_path) == "checkpoint-10"
    with pytest.raises(ToolkitError, match="framework"):
        resume.newest(finetune_runs.tiny_plan(zero=0), tmp_path)


def test_another_micro_batch_is_the_same_experiment(tmp_path: Path) -> None:
    saved(tmp_path, finetune_runs.tiny_plan(micro_batch=4))
    assert resume.newest(finetune_runs.tiny_plan(micro_batch=8), tmp_path) == "checkpoint-10"
