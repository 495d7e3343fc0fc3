"""Which checkpoints a plan may go on from."""

import re
from pathlib import Path

import msgspec
import pytest

from recipes import ranks, resume
from tests import finetune_runs
from toolkit.errors import Problem, ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import checkpoint, reshard


def saved(folder: Path, made: Plan, step: int = 10, whole: bool = True) -> None:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "weights").write_bytes(b"123")
    if whole:
        checkpoint.commit(path, resume.facts(made) | {"step": step})


def found(made: Plan, folder: Path) -> resume.Start:
    start = resume.find(made, folder)
    assert start is not None
    return start


def test_what_is_passed_over_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = finetune_runs.tiny_plan()
    for step, whole in ((5, True), (10, True), (15, False)):
        saved(tmp_path, made, step, whole)
    assert found(made, tmp_path).step == 10
    assert "warning: not whole, and passed over: incomplete-15 (" in capsys.readouterr().out
    assert found(made, tmp_path).step == 10 and not capsys.readouterr().out
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}" / "weights").write_bytes(b"124")
    assert resume.find(made, tmp_path) is None
    said = capsys.readouterr().out
    assert "passed over: incomplete-5, incomplete-10 (" in said and "begins at its first step again" in said


def test_the_newest_valid_one(tmp_path: Path) -> None:
    made = finetune_runs.tiny_plan()
    assert resume.find(made, tmp_path) is None
    for step, whole in ((5, True), (10, True), (15, False)):
        saved(tmp_path, made, step, whole)
    assert found(made, tmp_path)[:3] == (tmp_path / "checkpoint-10", "checkpoint-10", 10)
    assert not (tmp_path / "checkpoint-15").exists()
    (tmp_path / "checkpoint-10" / "weights").write_bytes(b"124")
    assert found(made, tmp_path).step == 5


def test_another_experiment_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, finetune_runs.tiny_plan())
    other = finetune_runs.tiny_plan(learning_rate=1.0)
    said = r"checkpoint-10 belongs to another experiment: learning_rate is 0\.003 there and 1\.0 in this plan$"
    for refuse in (resume.find, resume.require_same_experiment):  # the one loads, the other reads manifests alone
        with pytest.raises(ToolkitError) as found:
            refuse(other, tmp_path)  # type: ignore[operator]
        (problem,) = found.value.problems
        assert re.search(said, problem.message) and "another --output-dir" in problem.remedy
    resume.require_same_experiment(other, tmp_path / "elsewhere")
    resume.require_same_experiment(finetune_runs.tiny_plan(), tmp_path)


def test_another_global_batch_is_another_experiment(tmp_path: Path) -> None:
    made = finetune_runs.tiny_plan()
    saved(tmp_path, made)
    larger = msgspec.structs.replace(made, contract=msgspec.structs.replace(made.contract, global_batch_size=32))
    with pytest.raises(ToolkitError, match="belongs to another experiment"):
        resume.find(larger, tmp_path)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (finetune_runs.tiny_plan(zero=3), "is no checkpoint of DeepSpeed"),
        (finetune_runs.tiny_plan(ranks=4), "is no checkpoint of DeepSpeed"),
        (finetune_runs.tiny_plan("ddp"), "names the parameters that checkpoint-10 has under numbers"),
        (finetune_runs.tiny_plan(zero=0), "names the parameters that checkpoint-10 has under numbers"),
    ],
)
def test_what_cannot_be_converted_is_refused_before_an_engine_starts(tmp_path: Path, other: Plan, said: str) -> None:
    """Another stage or other ranks go by another form, and this folder holds nothing of DeepSpeed's."""
    saved(tmp_path, finetune_runs.tiny_plan())
    with pytest.raises(ToolkitError, match=said):
        resume.find(other, tmp_path)
    assert not any(checkpoint.complete(tmp_path / name) for name in resume.CONVERTED.values())
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-10"]


def test_ddp_goes_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    saved(tmp_path, finetune_runs.tiny_plan("ddp"))
    assert found(finetune_runs.tiny_plan("ddp", ranks=4), tmp_path).route.kind == reshard.PLAIN


def test_another_micro_batch_is_the_same_experiment(tmp_path: Path) -> None:
    saved(tmp_path, finetune_runs.tiny_plan(micro_batch=4))
    assert found(finetune_runs.tiny_plan(micro_batch=8), tmp_path).path == tmp_path / "checkpoint-10"


class Others:
    """A group in which rank 1 of 2 always answers the same."""

    rank, size, host = 0, 2, "here"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def share(self, value: object) -> list[object]:
        return [value, self.answer]


def test_a_problem_of_one_rank_is_one_of_all() -> None:
    hidden = Problem("node-7 does not see checkpoint-10", "share the storage")
    with pytest.raises(ToolkitError, match="node-7 does not see"):
        ranks.everywhere(lambda: None, Others((hidden,)))
    ranks.everywhere(lambda: None, Others(()))
