"""Every fault of the kind that is known from other projects, put into the real programs, is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.parity import faulty
from tests.verify.parity.experiments import Experiments
from tests.verify.parity.fault_table import FAULTS, FINETUNE, PRETRAIN
from tests.verify.parity.ranks import start
from toolkit.verify.parity.run import pair, refused
from toolkit.verify.parity.start import Refused
from toolkit.verify.parity.traces import Run

LEAST = 3  # steps of a reference, which cases of fewer share


def test_every_fault_is_a_case() -> None:
    assert set(FINETUNE) == set(faulty.FINETUNE) and set(PRETRAIN) == set(faulty.PRETRAIN)


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory, forked: None) -> Experiments:
    return Experiments(tmp_path_factory.mktemp("parity"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_and_named(fault: str, experiments: Experiments, tmp_path: Path) -> None:
    case = FAULTS[fault]
    everywhere = fault if case.everywhere else ""
    plan, one = experiments.get(case.recipe, case.layout, case.material, max(case.steps, LEAST), everywhere)
    one = _first(one, case.steps)
    try:
        found = pair(plan, one, start(plan, tmp_path, case.steps, fault))
    except Refused as refusal:  # the program finds these itself, and ends
        found = refused(plan, one, refusal)
    assert found["verdict"] == "fail"
    assert case.words in found["cause"], found
    if case.quantity is not None:
        assert found["where"]["quantity"] == case.quantity, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "layout", "material"),
    [
        ("tiny", "lora", "dropout"),
        ("tiny", "ddp2", "epochs"),
        ("tiny", "ga4", "clipped"),
        ("tiny-pretrain", "tp2+sp", "biases"),
    ],
)
def test_without_a_fault_these_experiments_pass(
    recipe: str, layout: str, material: str, experiments: Experiments, tmp_path: Path
) -> None:
    plan, one = experiments.get(recipe, layout, material, LEAST)
    found = pair(plan, one, start(plan, tmp_path, LEAST))
    assert found["verdict"] == "pass", found
    assert found["steps"] == LEAST and set(found["checks"].values()) == {"ok"} and found["cause"] == ""


def _first(run: Run, steps: int) -> Run:
    """The reference as if it had been stopped after so many steps."""
    short = Run(run.folder, run.logged[:steps])
    short.steps = min(steps, run.steps)
    return short
