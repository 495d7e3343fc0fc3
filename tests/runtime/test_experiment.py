"""In which settings a checkpoint's experiment differs from a plan's: every one is named, with both values."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import finetune_runs
from toolkit import plan as plans
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract, contract_sha256
from toolkit.runtime import checkpoint, experiment, manifest
from toolkit.runtime.saver import start_from_durable
from toolkit.runtime.together import ALONE

MADE = finetune_runs.tiny_plan().contract
VALUES = msgspec.to_builtins(MADE)


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, (int, float)) else f"{value}x"


@given(st.sets(st.sampled_from(sorted(VALUES))))
def test_all_that_differ_are_named_and_no_other(names: set[str]) -> None:
    now = msgspec.structs.replace(MADE, **{name: other(VALUES[name]) for name in names})
    assert {each.name for each in experiment.differences(experiment.facts(MADE)["contract"], now)} == names
    said = experiment.told(experiment.facts(MADE), now)
    assert bool(said) == bool(names)
    for name in names:
        assert f"{name} is {experiment._shown(VALUES[name])} there and {experiment._shown(other(VALUES[name]))}" in said


def test_a_manifest_keeps_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-3"
    path.mkdir()
    (path / "weights").write_bytes(b"1")
    checkpoint.commit(path, experiment.facts(MADE) | {"step": 3})
    saved = checkpoint.facts(path)
    assert saved["contract"] == VALUES and saved["contract_sha256"] == contract_sha256(MADE)
    experiment.require_same(saved, MADE, path)


def test_a_manifest_of_before_tells_its_fingerprint_or_the_plan_beside_it_does(tmp_path: Path) -> None:
    now = msgspec.structs.replace(MADE, seed=7)
    old = manifest.decode(b'{"step": 3, "contract_sha256": "%s"}' % contract_sha256(MADE).encode(), "manifest.json")
    saved = manifest.flat(old)
    assert "which settings differ was not saved" in experiment.told(saved, now, tmp_path)
    (tmp_path / "plan.json").write_text(plans.dump(finetune_runs.tiny_plan(learning_rate=9.0)))  # of a third one
    assert "which settings differ was not saved" in experiment.told(saved, now, tmp_path)
    (tmp_path / "plan.json").write_text("{")
    assert "which settings differ was not saved" in experiment.told(saved, now, tmp_path)
    (tmp_path / "plan.json").write_text(plans.dump(finetune_runs.tiny_plan()))
    assert experiment.told(saved, now, tmp_path) == f"seed is {MADE.seed} there and 7 in this plan"
    assert experiment.told(saved, MADE, tmp_path) == ""


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({}, "not told there"),
        ({"contract_sha256": "abc", "contract": {}}, "abc there"),
        ({"contract_sha256": "abc", "contract": [1]}, "abc there"),
        ({"contract_sha256": 5, "contract": VALUES}, "5 there"),  # the same settings, and a fingerprint that is none
        ({"contract_sha256": "abc", "contract": VALUES | {"curriculum": [1]}}, "curriculum is [1] there and not there"),
        ({"contract_sha256": "abc", "contract": VALUES | {"model": "m" * 999}}, 'model is "mmm'),
    ],
)
def test_whatever_a_manifest_holds_it_is_a_sentence(saved: dict[str, Any], said: str) -> None:
    found = experiment.told(saved, MADE)
    assert said in found and len(found) < 400 and "\n" not in found


def test_a_setting_that_came_later_had_its_default() -> None:
    saved = {name: value for name, value in VALUES.items() if name != "expert_balance"}
    assert experiment.differences(saved, MADE) == []
    later = msgspec.structs.replace(MADE, expert_balance="sequence")
    assert [each.name for each in experiment.differences(saved, later)] == ["expert_balance"]
    assert Contract().expert_balance == MADE.expert_balance


def test_a_checkpoint_of_another_experiment_is_not_fetched_from_durable_storage(tmp_path: Path) -> None:
    far, run = tmp_path / "far", tmp_path / "run"
    path = far / "checkpoint-3"
    path.mkdir(parents=True)
    run.mkdir()
    (path / "weights").write_bytes(b"1")
    checkpoint.commit(path, experiment.facts(MADE) | {"step": 3})
    now = msgspec.structs.replace(MADE, epochs=9.0)
    url = far.as_uri()
    with pytest.raises(ToolkitError, match=r"file://.*checkpoint-3 belongs to another experiment: epochs is"):
        start_from_durable(run, url, ALONE, lambda saved, where: experiment.require_same(saved, now, where))
    assert not list(run.iterdir())
    assert (
        start_from_durable(run, url, ALONE, lambda saved, where: experiment.require_same(saved, MADE, where))
        == path.name
    )
