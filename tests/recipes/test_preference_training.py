"""DPO on CPU ranks: it starts at ln 2, learns what is preferred, survives a stop; log probabilities are the model's."""

import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recipes.byte_tokenizer import ByteTokenizer
from recipes.finetune import preferences
from tests import finetune_runs
from toolkit.plan import Plan
from toolkit.recipe import Recipe
from toolkit.registry.recipes import load_recipe
from toolkit.runtime.telemetry import read_evaluations, read_steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]
RECIPE: Recipe = load_recipe("tiny-dpo")
STEPS = RECIPE.contract.total_steps


def plan(zero: int = 2, method: str = "full", **contract: Any) -> Plan:
    """The recipe on two ranks with DeepSpeed, in fp32 so that runs can be compared bit for bit."""
    made = finetune_runs.tiny_plan(zero=zero, micro_batch=2, precision="fp32", method=method)
    changed = msgspec.structs.replace(RECIPE.contract, precision="fp32", method=method, **contract)
    work = {name: getattr(changed, name) for name in ("global_batch_size", "sequence_length", "objective")}
    return msgspec.structs.replace(
        made,
        name="tiny-dpo",
        contract=changed,
        workload=msgspec.structs.replace(made.workload, **work),
        strategy=msgspec.structs.replace(made.strategy, gradient_accumulation_steps=2),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe to its end on two ranks with ZeRO-2, evaluated every five steps."""
    folder = tmp_path_factory.mktemp("dpo")
    finetune_runs.steps(plan(), folder, "--eval-steps=5", "--save-steps=10")
    return folder


def test_the_first_loss_is_ln_2_and_the_preference_is_learnt(whole: Path) -> None:
    steps, held_out = read_steps(whole / "run"), read_evaluations(whole / "run")
    assert len(steps) == STEPS and held_out[0].step == 0 and held_out[-1].step == STEPS
    for first in (steps[0].loss, held_out[0].held_out_loss):
        assert first == pytest.approx(math.log(2.0), abs=1e-6)
    assert steps[0].reward_margin == pytest.approx(0.0, abs=1e-5)
    losses = [each.held_out_loss for each in held_out]
    margins = [each.reward_margin for each in held_out]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.35  # type: ignore[type-var,operator]
    assert margins == sorted(margins) and margins[-1] > 1.0  # type: ignore[type-var,operator]
    assert held_out[-1].reward_accuracy == 1.0 and held_out[0].tokens == held_out[-1].tokens > 0
    assert steps[-1].tokens == 2 * 8 * 128 and steps[-1].samples_seen == 8 * STEPS
    assert not (whole / "run" / "README.md").exists()  # trl's page about itself


def test_a_run_that_goes_on_repeats_the_whole_one_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    path = finetune_runs.write(plan(), tmp_path)
    for last in (3, 6):
        done = finetune_runs.start(path, 2, f"--max-steps={last}", "--save-steps=3")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming" in done.stdout or "going on" in done.stdout or "checkpoint-3" in done.stdout
    again, straight = read_steps(tmp_path / "run"), read_steps(whole / "run")[:6]
    values = ("loss", "learning_rate", "gradient_norm", "reward_margin")
    assert [[getattr(each, name) for name in values] for each in again] == [
        [getattr(each, name) for name in values] for each in straight
    ]


def test_adapters_learn_against_the_model_without_them(tmp_path: Path) -> None:
    made = plan(method="lora", learning_rate=1e-2)
    steps = finetune_runs.steps(made, tmp_path, "--max-steps=6")
    assert steps[0].loss == pytest.approx(math.log(2.0), abs=1e-6)
    assert steps[-1].loss is not None and steps[-1].loss < 0.6 and (steps[-1].reward_margin or 0.0) > 0.1


def test_ranks_together_are_one_device() -> None:
    """The pairs, loss, gradients and weights of two ranks on ZeRO-2 against those of one process."""
    words = ("parity", "tiny-dpo", "--cluster", "local-cpu", "--against", "zero2", "--steps", "2", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", *words], capture_output=True, text=True, env=finetune_runs.environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (pair,) = json.loads(done.stdout)["pairs"]
    assert pair["verdict"] == "pass" and pair["workers"] == 2
    assert set(pair["checks"].values()) == {"ok"}


def trainer(folder: Path, **contract: Any) -> Any:
    """The program's own trainer on the tiny shape, in this process."""
    from recipes.finetune import arguments, preference_trainer
    from recipes.finetune import model as models

    made = msgspec.structs.replace(
        plan(**contract), strategy=msgspec.structs.replace(plan().strategy, framework="ddp", zero_stage=0, dp=1)
    )
    tokenizer = ByteTokenizer()
    pairs, _ = preferences.build(made.contract, tokenizer)
    keywords = arguments.training_arguments(made, str(folder), None, 500, [])
    model, _ = models.load_model(made, tokenizer)
    return preference_trainer.PreferenceTrainer(
        plan=made,
        total_steps=STEPS,
        model=model,
        ref_model=models.load_reference(made, tokenizer),
        args=preference_trainer.training_arguments(made, keywords),
        train_dataset=preferences.dataset(pairs, range(8)),
        eval_dataset=preferences.dataset(pairs, range(8, 11)),
        data_collator=preference_trainer.collator(made, tokenizer.pad_token_id),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("loss", ["sigmoid", "sigmoid_norm", "ipo"])
def test_loss_and_margin_are_those_of_a_direct_computation(loss: str, tmp_path: Path) -> None:
    """Policy and reference that differ; log probabilities of the answers alone, from whole logits in float64."""
    import torch

    made = trainer(tmp_path, dpo_loss=loss)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)

    def answer(model: Any, prompt: list[int], words: list[int]) -> Any:
        tokens = torch.tensor([prompt + words])
        with torch.no_grad():
            logits = model(input_ids=tokens).logits[0, :-1].double().log_softmax(-1)
        return logits.gather(1, tokens[0, 1:, None])[len(prompt) - 1 :].sum()

    rows, beta, losses, margins = list(made.train_dataset), made.beta, [], []
    for row in rows:
        ratios = [
            answer(made.model, row["prompt_ids"], row[name]) - answer(made.ref_model, row["prompt_ids"], row[name])
            for name in ("chosen_ids", "rejected_ids")
        ]
        sizes = [len(row[name]) if loss != "sigmoid" else 1 for name in ("chosen_ids", "rejected_ids")]
        margin = ratios[0] / sizes[0] - ratios[1] / sizes[1]
        losses.append(
            (margin - 1 / (2 * beta)) ** 2 if loss == "ipo" else -torch.nn.functional.logsigmoid(beta * margin)
        )
        margins.append(beta * (ratios[0] - ratios[1]))
    made.model.train()
    batch = made.data_collator(rows)
    assert batch["input_ids"].shape == (2 * len(rows), 128)
    found = made.compute_loss(made.model, batch).item()
    assert abs(sum(margins).item()) > 1e-3  # the models do differ
    assert found == pytest.approx((sum(losses) / len(losses)).item(), rel=1e-4)
    metrics = made._metrics["train"]["rewards/margins"]
    assert metrics[-1] == pytest.approx((sum(margins) / len(margins)).item(), rel=1e-3, abs=1e-5)


def test_every_setting_of_the_loss_is_one_that_the_library_has() -> None:
    import inspect

    from trl import DPOConfig, DPOTrainer

    from toolkit.recipe import CHOICES

    assert {"beta", "loss_type", "max_length", "gradient_checkpointing"} <= set(inspect.signature(DPOConfig).parameters)
    source = inspect.getsource(DPOTrainer._compute_loss)
    assert all(f'"{name}"' in source for name in CHOICES["dpo_loss"])


def test_the_pinned_version_is_the_one_that_runs() -> None:
    import importlib.metadata

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["dpo"] == [f"trl=={importlib.metadata.version('trl')}"]
