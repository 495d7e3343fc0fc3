"""A fine-tuning run that is killed and started again is the run that never was: to the last bit, on one layout.

Shuffled, with accumulation, from the middle of an epoch over its edge; LoRA with dropout, so that random states matter.
On other ranks or another ZeRO stage: the same samples, and what rounding explains (docs/parity.md).
"""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from recipes import resume
from tests import finetune_runs
from tests import resumed_runs as runs
from tests.resumed_runs import LAST, SAVED
from toolkit.cli.main import group
from toolkit.plan import Plan
from toolkit.runtime import checkpoint
from toolkit.runtime.telemetry import read_steps
from toolkit.verify.parity.compare import compare

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

LAYOUTS = {
    "ddp": {"framework": "ddp"},
    "zero1": {"zero": 1},
    "zero2": {"zero": 2},
    "zero3": {"zero": 3},
    "lora": {"framework": "ddp", "method": "lora", "lora_dropout": 0.1},
    "zero3-lora": {"zero": 3, "method": "lora"},
    "fsdp": {"framework": "fsdp"},
    "tied-zero3": {"zero": 3},
    "tied-zero2": {"zero": 2},
    "zero0": {"zero": 0},
    "bf16-zero0": {"zero": 0, "precision": "bf16"},
    "sgd": {"framework": "ddp", "optimizer": "sgd"},
    "sgd-zero3": {"zero": 3, "optimizer": "sgd"},
}
TIED = finetune_runs.PARAMETERS - 260 * 128  # embeddings and head are one


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


def plan_of(shared: Path, layout: str, ranks: int = 2) -> Plan:
    settings = {"precision": "fp32"} | runs.settings(shared) | {"sequence_length": runs.WIDTH}
    made = finetune_runs.tiny_plan(ranks=ranks, micro_batch=2, **(settings | LAYOUTS[layout]))
    if layout.startswith("tied"):
        model = msgspec.structs.replace(made.model, tie_word_embeddings=True)
        made = msgspec.structs.replace(made, model=model, total_parameters=TIED)
    return made


@pytest.fixture(scope="module")
def straight(shared: Path) -> Callable[[str], Path]:
    """The run of a layout on two ranks that nothing happens to, once."""

    def made(layout: str) -> Path:
        folder = shared / layout
        if not folder.exists():
            runs.run(plan_of(shared, layout), folder)
        return folder

    return made


@pytest.mark.parametrize("layout", ["ddp", "zero1", "zero2", "zero3", "lora", "bf16-zero0"])
def test_a_killed_run_is_the_one_that_was_not(
    layout: str, straight: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    whole, plan = straight(layout), plan_of(shared, layout)
    first = runs.killed_after_save(plan, tmp_path, random.uniform(0.0, 1.5)) + 1  # in the next step, or the one after
    said = runs.run(plan, tmp_path)
    assert f"resuming from checkpoint-{first - 1}" in said
    if layout == "lora":
        runs.assert_same_telemetry(whole, tmp_path)
        assert not list(whole.glob("trace-*"))  # which has no dropout
    else:
        runs.assert_same_steps(whole, tmp_path, start=1, first=first)
    ends = [folder / "run" / f"checkpoint-{LAST}" for folder in (whole, tmp_path)]
    assert runs.assert_same_checkpoints(*ends) > 100
    assert (ends[0] / "rng_state_1.pth").exists()


@pytest.mark.parametrize(
    ("before", "after", "ranks", "way"),
    [
        ("zero2", "zero3", 4, "universal"),
        ("zero3", "zero1", 1, "universal"),
        ("ddp", "zero2", 4, "universal"),  # a user who climbs the ladder in the middle of a run
        ("zero2", "zero0", 1, "rewritten"),
        ("zero3", "ddp", 1, "rewritten"),
        ("ddp", "fsdp", 2, "rewritten"),
        ("sgd", "sgd-zero3", 1, "universal"),
        ("zero3-lora", "zero3-lora", 1, "universal"),
        ("tied-zero3", "tied-zero2", 1, "universal"),
        ("ddp", "ddp", 1, ""),
        ("fsdp", "fsdp", 4, ""),
    ],
)
def test_another_layout_goes_on_with_the_same_samples_within_rounding(
    before: str, after: str, ranks: int, way: str, straight: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    whole, plan = straight(before), plan_of(shared, after, ranks)
    other = tmp_path / "other"
    (other / "run").mkdir(parents=True)
    runs.give(whole, other, SAVED)
    said = runs.run(plan, other)
    assert f"resuming from checkpoint-{SAVED}" + (f" ({way}: " if way else "\n") in said
    one = runs.trace_of(whole, 0)
    two = runs.spliced(whole, other, 0, SAVED + 1, tmp_path / "spliced")
    assert two.steps == LAST
    for step in range(SAVED + 1, LAST + 1):
        assert runs.samples(one, step) == runs.samples(two, step)
    rates = [[step.learning_rate for step in read_steps(folder / "run")] for folder in (whole, other)]
    assert rates[0] == rates[1]
    found = compare(plan, one, two)
    assert found.steps == LAST and not found.only_in_one
    assert {row.quantity for row in found.rows if row.step == LAST} >= {"loss", "logged_loss", "weights"}
    assert found.failing() == []
    # a checkpoint of the new layout has followed
    assert not any((other / "run" / name).exists() for name in resume.CONVERTED.values())


def converted(source: Path, target: Path, form: str) -> str:
    done = CliRunner().invoke(group, ["ckpt", "convert", str(source), str(target), "--to", form])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("layout", ["zero1", "zero3", "fsdp", "ddp", "zero3-lora", "tied-zero3", "bf16-zero0"])
def test_the_weights_of_a_checkpoint_are_an_ordinary_model(
    layout: str, straight: Callable[[str], Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    run = straight(layout)
    said = converted(run / "run" / f"checkpoint-{SAVED}", tmp_path / "model", "hugging-face")
    adapters = layout == "zero3-lora"
    parameters = TIED if layout == "tied-zero3" else finetune_runs.PARAMETERS
    assert f"{149_504 if adapters else parameters:,} parameters" in said
    found = load_file(tmp_path / "model" / ("adapter_model.safetensors" if adapters else "model.safetensors"))
    traced = runs.trace_of(run, 0).arrays("w", SAVED)
    plain = {name.replace(".default.", "."): array for name, array in traced.items()}
    assert found.keys() == plain.keys()
    assert all(np.array_equal(found[name].float().numpy(), plain[name]) for name in plain)
    if not adapters:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        assert sum(parameter.numel() for parameter in model.parameters()) == parameters
        assert AutoTokenizer.from_pretrained(tmp_path / "model").pad_token_id is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_universal_form_that_was_made_before_is_taken_as_it_is(
    straight: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    whole = straight("zero2")
    (tmp_path / "run").mkdir()
    runs.give(whole, tmp_path, SAVED)
    source = tmp_path / "run" / f"checkpoint-{SAVED}"
    said = converted(source, tmp_path / "run" / "universal" / source.name, "deepspeed-universal")
    assert "from ZeRO stage 2 on 2 ranks" in said and "host memory on a node of 8" in said
    made = (tmp_path / "run" / "universal" / source.name / "manifest.json").stat()
    start = resume.find(plan_of(shared, "zero3", 4), tmp_path / "run")
    assert start is not None and start.converted and start.path == tmp_path / "run" / "universal" / source.name
    assert (start.path / "manifest.json").stat() == made
    universal = tmp_path / "weights"
    converted(start.path, universal, "hugging-face")
    converted(source, tmp_path / "same", "hugging-face")
    assert (universal / "model.safetensors").read_bytes() == (tmp_path / "same" / "model.safetensors").read_bytes()


def altered(whole: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    """A run's folder whose checkpoint was changed and declared whole again: as if it had been saved so."""
    (folder / "run").mkdir(parents=True)
    runs.give(whole, folder, SAVED)
    source = folder / "run" / f"checkpoint-{SAVED}"
    facts = checkpoint.facts(source)
    change(source)
    checkpoint.commit(source, facts)
    return folder


def refused(plan: Plan, folder: Path, said: str) -> None:
    output = runs.run(plan, folder, code=2)
    assert f"error: {said}" in output and "Traceback" not in output
    assert len(read_steps(folder / "run")) == SAVED  # not one step was made


def without_a_weight(source: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(source / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda source: (source / "optimizer.pt").unlink(),
            "the optimizer's states are those after 0 steps, the checkpoint was saved after 3",
        ),
        (
            lambda source: (source / "scheduler.pt").unlink(),
            "the optimizer's states are those after 0 steps",  # without either file the Trainer loads neither
        ),
        (without_a_weight, "{run}/checkpoint-3 lacks model.layers.2.mlp.up_proj.weight"),
    ],
    ids=["no-optimizer", "no-schedule", "no-weight"],
)
def test_what_the_trainer_would_leave_out_in_silence_ends_the_run(
    change: Callable[[Path], None], said: str, straight: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    folder = altered(straight("ddp"), tmp_path / "altered", change)
    refused(plan_of(shared, "ddp", 1), folder, said.format(run=folder / "run"))


def test_other_tokens_under_the_same_name_are_refused(straight: Callable[[str], Path], tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "ddp", 1)  # its text lies elsewhere, so this is another contract: write it as saved
    text = Path(plan.contract.dataset)
    text.write_text(text.read_text().replace("shard", "piece"))
    folder = altered(straight("ddp"), tmp_path / "altered", lambda source: None)
    source = folder / "run" / f"checkpoint-{SAVED}"
    checkpoint.commit(source, checkpoint.facts(source) | resume.facts(plan) | {"world_size": 2})
    refused(plan, folder, f"{source} was trained on other tokens than {plan.contract.dataset!r} now has")
