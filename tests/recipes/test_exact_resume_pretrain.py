"""A pretraining run that is killed and started again is the run that never was; other degrees go on within rounding.

Shuffled, with accumulation, from the middle of an epoch over its edge. There is no dropout here (the program refuses
what would need random states), so nothing of them is saved.
"""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests import resumed_runs as runs
from tests.plans import LAPTOP, plan
from tests.recipes.test_pretrain import EXPERTS, MODEL
from tests.resumed_runs import BATCH, LAST, SAVED
from toolkit.emit.megatron import core_config
from toolkit.plan import Plan
from toolkit.runtime.telemetry import read_steps
from toolkit.verify.parity.compare import compare

LAYOUTS = {
    "dp2": {},
    "dp2-distributed-optimizer": {"zero_stage": 1},
    "tp2": {"tp": 2, "sequence_parallel": 1},
    "pp2": {"pp": 2},
    "tp2-distributed-optimizer": {"tp": 2, "sequence_parallel": 1, "zero_stage": 1},
    "pp2-distributed-optimizer": {"pp": 2, "zero_stage": 1},
    "one": {"ranks": 1},
    "dp4-distributed-optimizer": {"ranks": 4, "zero_stage": 1},
    "experts": {"ranks": 1},
    "experts-ep2-distributed-optimizer": {"ep": 2, "zero_stage": 1},
}


def plan_of(shared: Path, layout: str) -> Plan:
    strategy = dict(LAYOUTS[layout])
    ranks = strategy.pop("ranks", 2)
    shards = strategy.get("tp", 1) * strategy.get("pp", 1)
    return plan(
        "pretrain-test",
        EXPERTS if layout.startswith("experts") else MODEL,
        msgspec.structs.replace(LAPTOP, gpus_per_node=ranks),
        framework="megatron",
        micro_batch_size=2,
        gradient_accumulation_steps=BATCH * shards // (2 * ranks),
        workload={"sequence_length": runs.WIDTH, "precision": "fp32"},
        contract=runs.settings(shared),
        **strategy,
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume-pretrain")


@pytest.fixture(scope="module")
def straight(shared: Path) -> Callable[[str], Path]:
    """The run of a layout that nothing happens to, once."""

    def made(layout: str) -> Path:
        folder = shared / layout
        if not folder.exists():
            runs.run(plan_of(shared, layout), folder)
        return folder

    return made


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("layout", ["dp2", "dp2-distributed-optimizer", "tp2", "pp2"])
def test_a_killed_run_is_the_one_that_was_not(
    layout: str, straight: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    whole, made = straight(layout), plan_of(shared, layout)
    first = runs.killed_after_save(made, tmp_path, random.uniform(0.0, 1.5)) + 1
    said = runs.run(made, tmp_path)
    assert f"resuming from checkpoint-{first - 1}\n" in said
    runs.assert_same_steps(whole, tmp_path, start=1, first=first)
    ends = [runs.tensors(folder / "run" / f"checkpoint-{LAST}") for folder in (whole, tmp_path)]
    assert ends[0].keys() == ends[1].keys()
    assert len(ends[0]) >= 3 * 9  # of the layers together 6, two ends and the norm: weights, and two moments of each
    assert all(ends[0][name] == ends[1][name] for name in ends[0])


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ("dp2", "one", "dp 2 to 1"),
        ("dp2", "dp4-distributed-optimizer", "dp 2 to 4, the ordinary optimizer to the distributed one"),
        (
            "dp2-distributed-optimizer",
            "tp2",
            "tp 1 to 2, dp 2 to 1, the distributed one to the ordinary optimizer",
        ),
        ("tp2", "pp2", "tp 2 to 1, pp 1 to 2"),
        (
            "experts-ep2-distributed-optimizer",
            "experts",
            "ep 2 to 1, dp 2 to 1, the distributed one to the ordinary optimizer",
        ),
    ],
)
def test_other_degrees_go_on_with_the_same_samples_within_rounding(
    before: str, after: str, moved: str, straight: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    whole, made = straight(before), plan_of(shared, after)
    other = tmp_path / "other"
    (other / "run").mkdir(parents=True)
    runs.give(whole, other, SAVED)
    said = runs.run(made, other)
    assert f"resuming from checkpoint-{SAVED} (distributed: {moved})" in said
    one = runs.trace_of(whole, 0)
    two = runs.spliced(whole, other, 0, SAVED + 1, tmp_path / "spliced")
    assert two.steps == LAST
    for step in range(SAVED + 1, LAST + 1):
        assert set(runs.samples(one, step)) == set(runs.samples(two, step))
    rates = [[step.learning_rate for step in read_steps(folder / "run")] for folder in (whole, other)]
    assert rates[0] == rates[1]
    found = compare(made, one, two)
    assert found.steps == LAST and not found.only_in_one
    assert found.failing() == []


def test_there_are_no_random_states_to_lose(tmp_path: Path) -> None:
    """What the emitter writes has no dropout, in any layout."""
    for layout in LAYOUTS:
        transformer = core_config(plan_of(tmp_path, layout))["transformer"]
        assert transformer["attention_dropout"] == transformer["hidden_dropout"] == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_checkpoint_becomes_a_hugging_face_folder_and_that_one_of_megatron_again(
    straight: Callable[[str], Path], tmp_path: Path
) -> None:
    source = straight("dp2-distributed-optimizer") / "run" / f"checkpoint-{SAVED}"
    for start, target, form in ((source, "model", "hugging-face"), (tmp_path / "model", "again", "megatron")):
        command = [sys.executable, "-m", "toolkit", "ckpt", "convert", str(start), str(tmp_path / target), "--to", form]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    weights, trained = runs.tensors(tmp_path / "again"), runs.tensors(source)
    assert set(weights) == {name for name in trained if not name.startswith("optimizer.")} and len(weights) == 9
    assert all(weights[name] == trained[name] for name in weights)  # to the bit
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    head = model.lm_head.weight.detach().numpy().tobytes()  # without the padding of the vocabulary
    assert len(head) == 4 * MODEL.vocab_size * MODEL.hidden_size and trained["output_layer.weight"].startswith(head)
