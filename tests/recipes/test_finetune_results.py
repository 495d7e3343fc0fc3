"""What a run on conversations ends as: the same on every layout, and models that others can load."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from recipes.byte_tokenizer import PADDING
from recipes.finetune import data, packing
from tests import finetune_runs, wandb_runs
from toolkit.runtime import checkpoint
from toolkit.runtime.telemetry import read_evaluations, read_steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]
STEPS = 3


def conversations(folder: Path) -> Path:
    """Answers of 1 to 90 tokens: a mean of means would be another loss."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": "x" * (n % 17 + 1)},
                {"role": "assistant", "content": "abcdefghij"[: n % 10] * (1 + n * n % 9)},
            ]
        }
        for n in range(190)
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(conversations(tmp_path_factory.mktemp("rows")))


def run(folder: Path, rows: str, *arguments: str, offload: int = 0, **settings: Any) -> Path:
    """To the end, evaluated before the first step and after every second one; returns the output directory."""
    contract = {
        "dataset": rows,
        "completion_only": True,
        "precision": "fp32",
        "optimizer": "sgd",
        "learning_rate": 0.5,
        "min_learning_rate": 0.5,
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "total_steps": STEPS,
    }
    made = finetune_runs.tiny_plan(**(contract | settings))
    made = msgspec.structs.replace(made, strategy=msgspec.structs.replace(made.strategy, offload=offload))
    finetune_runs.steps(made, folder, "--eval-steps=2", *arguments)
    return folder / "run"


def weights(model: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")


@pytest.fixture(scope="module")
def reference(rows: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, one micro batch of all 16 sequences."""
    return run(tmp_path_factory.mktemp("one"), rows, ranks=1, framework="ddp", micro_batch=16)


@pytest.mark.parametrize(
    "layout",
    [
        {"ranks": 1, "framework": "ddp", "micro_batch": 1},
        {"ranks": 2, "framework": "ddp", "micro_batch": 2},
        {"ranks": 2, "zero": 2, "micro_batch": 1},
        {"ranks": 2, "zero": 3, "micro_batch": 8},
        {"ranks": 2, "framework": "fsdp", "micro_batch": 2},
    ],
    ids=lambda layout: "-".join(map(str, layout.values())),
)
def test_learning_does_not_depend_on_how_the_batch_is_cut(
    layout: dict[str, Any], reference: Path, rows: str, tmp_path: Path
) -> None:
    """Documents of different length, packed: 16, or 16 times 1, or on 2 ranks; fp32, equal up to the order of sums."""
    folder = run(tmp_path, rows, **layout)
    for mine, theirs in zip(read_steps(folder), read_steps(reference), strict=True):
        assert mine.loss == pytest.approx(theirs.loss, abs=2e-6)
        assert mine.gradient_norm == pytest.approx(theirs.gradient_norm, rel=2e-5)
    for mine, theirs in zip(read_evaluations(folder), read_evaluations(reference), strict=True):
        assert (mine.step, mine.tokens) == (theirs.step, theirs.tokens)
        assert mine.held_out_loss == pytest.approx(theirs.held_out_loss, abs=2e-6)
    one, other = weights(reference / "model"), weights(folder / "model")
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(other[name].numpy(), value.numpy(), atol=2e-7, rtol=0, err_msg=name)


def test_a_mean_of_means_would_be_another_loss(reference: Path, rows: str) -> None:
    """So that the test above can fail: with the trained weights, micro batches of 1 differ widely in their tokens."""
    contract = finetune_runs.tiny_plan(dataset=rows, completion_only=True).contract
    blocks = data.load(data.cache_folder(reference, contract))
    tokens = (blocks.labels != packing.IGNORED).sum(axis=1)
    assert tokens.min() >= 1 and tokens.max() > 1.5 * tokens.min()
    assert data.documents_in(blocks) > len(blocks.tokens)


def held_out_loss(model: Any, folder: Path, rows: str) -> float:
    """Loss on the held-out documents, each alone in its row, by the tokens that are learnt."""
    import torch

    contract = finetune_runs.tiny_plan(dataset=rows, completion_only=True).contract
    _, held_out = data.split(data.load(data.cache_folder(folder, contract)))
    total, count = 0.0, 0
    for tokens, labels, positions, length in zip(*held_out, strict=True):
        edges = [*np.flatnonzero(positions[:length] == 0).tolist(), int(length)]
        for first, last in zip(edges[:-1], edges[1:], strict=True):
            ids = torch.tensor(tokens[first:last].astype(np.int64))[None]
            learnt = torch.tensor(labels[first:last].astype(np.int64))[None]
            with torch.no_grad():
                number = int((learnt[:, 1:] != packing.IGNORED).sum())
                total += model(input_ids=ids, labels=learnt).loss.item() * number
            count += number
    return total / count


def test_the_model_that_is_saved_is_the_one_that_was_evaluated(reference: Path, rows: str) -> None:
    import torch
    import transformers

    evaluations = read_evaluations(reference)
    assert [each.step for each in evaluations] == [0, 2, 3]
    losses = [each.held_out_loss for each in evaluations]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.5
    model = transformers.AutoModelForCausalLM.from_pretrained(reference / "model", dtype=torch.float32)
    assert model.config.use_cache and model.config.pad_token_id == PADDING
    assert held_out_loss(model, reference, rows) == pytest.approx(losses[-1], abs=2e-6)
    finished = checkpoint.finished(reference)
    assert finished is not None and finished["held_out_loss"] == losses[-1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(reference / "model")
    written = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert written == "<begin>### user\nhi"


@pytest.mark.parametrize("layout", [{"zero": 2}, {"zero": 3}, {"framework": "fsdp"}], ids=["zero2", "zero3", "fsdp"])
def test_adapters_are_what_peft_reads_and_merge_into_the_model(
    layout: dict[str, Any], rows: str, tmp_path: Path
) -> None:
    """Under ZeRO-3 and FSDP too, where no rank holds a whole matrix."""
    import peft
    import torch
    import transformers

    settings = {"method": "lora", "learning_rate": 2.0, "min_learning_rate": 2.0, "ranks": 2} | layout
    folder = run(tmp_path, rows, "--merge", micro_batch=4, lora_dropout=0.0, **settings)
    evaluations = [each.held_out_loss for each in read_evaluations(folder)]
    assert evaluations[-1] < evaluations[0] - 0.05
    adapted = peft.AutoPeftModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    assert held_out_loss(adapted, folder, rows) == pytest.approx(evaluations[-1], abs=5e-6)
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32)
    assert held_out_loss(merged, folder, rows) == pytest.approx(evaluations[-1], abs=5e-6)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    assert held_out_loss(base, folder, rows) == pytest.approx(evaluations[0], abs=5e-6)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(tokens).logits, adapted(tokens).logits, atol=1e-5, rtol=1e-5)
        assert (merged(tokens).logits - base(tokens).logits).abs().max() > 1e-3


def test_one_run_at_wandb_over_restarts_known_from_the_checkpoint(tmp_path: Path) -> None:
    path = finetune_runs.write(finetune_runs.tiny_plan("ddp", ranks=1, micro_batch=16, total_steps=4), tmp_path)
    variables = {"WANDB_PROJECT": "p", "WANDB_SILENT": "true"}
    words = ["tests.recipes.troubled", "finetune", "killed", "3", "0", "--plan", str(path), "--save-steps=2"]
    environment = finetune_runs.environment(PYTHONPATH=str(Path.cwd()), **variables)
    first = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=240, env=environment, cwd=tmp_path
    )
    assert first.returncode != 0 and "step 3/4" in first.stdout, first.stdout + first.stderr
    run = tmp_path / "run"
    identity = checkpoint.facts(run / "checkpoint-2")["wandb_run_id"]
    (run / "wandb_run_id").unlink()  # as where only the checkpoint was kept
    second = finetune_runs.start(path, 1, **variables)
    assert second.returncode == 0, second.stdout + second.stderr
    assert checkpoint.facts(run / "checkpoint-4")["wandb_run_id"] == identity
    offline = sorted((run / "wandb").glob("offline-run-*"))
    assert len(offline) == 2 and all(each.name.endswith(identity) for each in offline)
    # wandb writes blocks, of which the killed start has filled none; step 3 was made twice
    rows = [wandb_runs.history(each / f"run-{identity}.wandb") for each in offline]
    losses = [
        [
            (number, values["train/global_step"], values["train/loss"])
            for number, values in part
            if "train/loss" in values
        ]
        for part in rows
    ]
    assert [each[:2] for each in losses[0]] == [(1, 1), (2, 2), (3, 3)][: len(losses[0])]
    assert [each[:2] for each in losses[1]] == [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4)]
    final = {step: loss for part in losses for _, step, loss in part}
    assert final == {step.step: pytest.approx(step.loss) for step in read_steps(run)}


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_on_a_terminal_and_lines_elsewhere(
    terminal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import os
    from types import SimpleNamespace

    from transformers import TrainerControl, TrainerState

    from recipes.finetune.callbacks import RecordSteps
    from toolkit.runtime.telemetry import Telemetry, run_record

    master, slave = os.openpty() if terminal else os.pipe()
    screen = os.fdopen(slave, "w")
    telemetry = Telemetry(tmp_path, run_record("x", b"", 1, "cpu"))
    record = RecordSteps(finetune_runs.tiny_plan(), telemetry, 2, screen)
    args, state = SimpleNamespace(process_index=0, max_steps=2, use_cpu=True), TrainerState()
    record.on_train_begin(args, state, TrainerControl())
    for state.global_step in (1, 2):
        record.on_log(args, state, TrainerControl(), {"loss": 3.25, "learning_rate": 0.1})
    record.on_train_end(args, state, TrainerControl())
    screen.close()
    shown = ""
    try:
        while part := os.read(master, 4096).decode():
            shown += part
    except OSError:  # how a terminal says that it is closed
        pass
    os.close(master)
    lines = capsys.readouterr().out
    assert ("2/2" in shown and "loss 3.2500" in shown) == terminal, shown
    assert ("step 2/2  loss 3.2500" in lines) != terminal
    assert len(read_steps(tmp_path)) == 2
