"""Real training of the tiny model on CPU ranks: it learns, it does not depend on the layout, it survives a stop."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from recipes import resume
from recipes.schedule import learning_rate
from tests import finetune_runs
from toolkit.record import StepRecord
from toolkit.runtime import checkpoint
from toolkit.runtime.telemetry import read_evaluations, read_run, read_steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


def losses(folder: Path) -> list[float]:
    return [step.loss for step in read_steps(folder / "run") if step.loss is not None]


def trained(folder: Path, *arguments: str, **plan: object) -> list[StepRecord]:
    return finetune_runs.steps(finetune_runs.tiny_plan(**plan), folder, *arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe as it is, on 2 ranks with DeepSpeed ZeRO-2 in bf16, to its end."""
    folder = tmp_path_factory.mktemp("whole")
    trained(folder, ranks=2)
    return folder


def test_the_loss_falls(whole: Path) -> None:
    fallen = losses(whole)
    assert len(fallen) == 60
    assert fallen[0] == pytest.approx(5.6, abs=0.15)  # about ln 260 = 5.56: nothing is known yet
    assert sum(fallen[-5:]) / 5 < 2.9
    finished = checkpoint.finished(whole / "run")
    assert finished is not None
    assert finished["held_out_loss"] < 2.9 and finished["step"] == 60


def test_telemetry_is_complete_and_follows_the_contract(whole: Path) -> None:
    made = finetune_runs.tiny_plan()
    run, steps = read_run(whole / "run"), read_steps(whole / "run")
    assert (run.name, run.world_size, run.device, run.restart_count) == ("tiny", 2, "cpu", 0)
    assert run.versions["deepspeed"] and run.versions["transformers"]
    for number, step in enumerate(steps, start=1):
        assert step.step == number
        assert step.tokens == 16 * 128 and step.samples_seen == 16 * number
        assert step.seconds > 0 and step.gradient_norm is not None and step.gradient_norm > 0
        parts = step.seconds_by_part
        assert parts is not None and parts.save == step.save_stall_seconds
        assert min(parts.data, parts.forward_backward, parts.optimizer, parts.other) > 0.0
        assert parts.data + parts.forward_backward + parts.optimizer + parts.other == pytest.approx(step.seconds)
        # prepared by accelerate, a scheduler would step once per rank
        assert step.learning_rate == pytest.approx(learning_rate(number - 1, 60, made.contract), rel=1e-9, abs=1e-12)


def test_the_result_is_an_ordinary_model(whole: Path) -> None:
    import torch
    import transformers

    from recipes.finetune import data
    from recipes.finetune.model import count_parameters

    folder = whole / "run" / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert count_parameters(model) == finetune_runs.PARAMETERS
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    contract = finetune_runs.tiny_plan().contract
    _, held_out = data.split(data.load(data.cache_folder(whole / "run", contract)))
    tokens = torch.tensor(held_out.tokens[:16].astype("int64"))
    with torch.no_grad():
        loss = model(input_ids=tokens, labels=tokens).loss.item()
    finished = checkpoint.finished(whole / "run")
    assert finished is not None
    assert loss == pytest.approx(finished["held_out_loss"], abs=0.15)  # other sequences of the same book
    assert tokenizer.decode(tokenizer.encode("Alice"), skip_special_tokens=True) == "Alice"


def test_training_goes_on_from_its_weights_under_another_layout(whole: Path, tmp_path: Path) -> None:
    weights = str(whole / "run" / "model")
    steps = trained(tmp_path, "--max-steps=1", zero=3, precision="fp32", model=weights, tokenizer="", seed=7)
    assert steps[0].loss is not None and steps[0].loss < 2.95  # 5.6 if they had not been loaded


def test_only_whole_checkpoints_are_left(whole: Path) -> None:
    kept = checkpoint.complete(whole / "run")
    assert [path.name for path in kept] == ["checkpoint-60"]
    facts = checkpoint.facts(kept[0])
    assert facts.items() >= (resume.facts(finetune_runs.tiny_plan()) | {"step": 60}).items()
    assert facts["samples_seen"] == 60 * finetune_runs.tiny_plan().contract.global_batch_size
    assert (facts["data"]["epoch"], facts["data"]["position"]) == (0, facts["samples_seen"])  # within the first epoch
    assert 0 < facts["save_seconds"] < 60
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= set(checkpoint.manifest.read(kept[0]).files)
    assert checkpoint.verify(kept[0]) == []
    assert (whole / "run" / "latest").read_text() == "checkpoint-60\n"


def test_a_signal_to_torchrun_saves_on_all_ranks_and_the_resumed_run_is_the_same(whole: Path, tmp_path: Path) -> None:
    path = finetune_runs.write(finetune_runs.tiny_plan(), tmp_path)
    with subprocess.Popen(
        finetune_runs.command(path, 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=finetune_runs.environment(),
    ) as launcher:
        steps = tmp_path / "run" / "steps.jsonl"
        deadline = time.monotonic() + 240
        while not (steps.exists() and steps.read_bytes().count(b"\n") >= 4):
            assert launcher.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        launcher.send_signal(signal.SIGUSR1)
        output, _ = launcher.communicate(timeout=180)
    (saved,) = checkpoint.complete(tmp_path / "run")
    stopped = checkpoint.facts(saved)["step"]
    assert 4 <= stopped < 60
    assert f"stopped after step {stopped} of 60 (SIGUSR1)" in output
    assert checkpoint.finished(tmp_path / "run") is None
    # both ranks wrote their part at that one step
    assert len(list(saved.glob("global_step*/*optim_states.pt"))) == 2
    assert len(list(saved.glob("rng_state_*.pth"))) == 2

    done = finetune_runs.start(path, 2, f"--max-steps={stopped + 4}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"resuming from {saved.name}" in done.stdout
    assert done.stdout.count(f"804,992 parameters, weights of {saved.name}\n") == 1
    assert losses(tmp_path) == losses(whole)[: stopped + 4]  # to the last bit: the same sequences, states and rates
    assert read_run(tmp_path / "run").restart_count == 1
    done = finetune_runs.start(path, 2, f"--max-steps={stopped + 4}")
    assert done.returncode == 0 and "already" in done.stdout
    assert len(losses(tmp_path)) == stopped + 4


def test_a_kill_between_the_last_save_and_the_end_costs_no_step(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    run = tmp_path / "copy" / "run"
    before = checkpoint.finished(run)
    (run / checkpoint.FINISHED).unlink()
    shutil.rmtree(run / "model")
    done = finetune_runs.start(tmp_path / "copy" / "plan.json", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 61" not in done.stdout and len(losses(tmp_path / "copy")) == 60
    after = checkpoint.finished(run)
    assert before is not None and after is not None
    assert after["held_out_loss"] == before["held_out_loss"] and (run / "model" / "model.safetensors").exists()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[StepRecord]:
    """One rank without any framework, fp32."""
    return trained(tmp_path_factory.mktemp("one"), "--max-steps=4", ranks=1, framework="ddp", precision="fp32")


@pytest.mark.parametrize(
    "layout", ["ddp", "zero0", "zero1-offload", "zero2", "zero3", "zero3-offload-recompute", "fsdp-recompute"]
)
def test_every_layout_learns_the_same(layout: str, reference: list[StepRecord], tmp_path: Path) -> None:
    """1 rank x 4 x accumulation 4 against 2 ranks x 2 x accumulation 4, fp32: equal up to the order of sums."""
    framework = layout.split("-")[0]
    settings = {"framework": framework} if framework in ("ddp", "fsdp") else {"zero": int(layout[4])}
    made = finetune_runs.tiny_plan(ranks=2, precision="fp32", micro_batch=2, **settings)
    offload = made.strategy.zero_stage // 2 + 1 if "offload" in layout else 0  # the parameters too at stage 3
    strategy = msgspec.structs.replace(made.strategy, offload=offload, recompute=2 if "recompute" in layout else 0)
    steps = finetune_runs.steps(msgspec.structs.replace(made, strategy=strategy), tmp_path, "--max-steps=4")
    assert [s.loss for s in steps] == pytest.approx([s.loss for s in reference], abs=5e-6)
    if layout == "zero0":  # DeepSpeed 0.19.8 clips in fp32 at stage 0 as well, but does not tell the norm
        assert [s.gradient_norm for s in steps] == [None] * 4
    else:
        assert [s.gradient_norm for s in steps] == pytest.approx([s.gradient_norm for s in reference], rel=2e-4)


def test_sequences_of_different_length_weigh_by_their_tokens(tmp_path: Path) -> None:
    """A mean over micro batches of their means would depend on how the batch is cut."""
    rows = [{"prompt": "x" * (n % 7), "completion": "abc " * (1 + n * n % 23)} for n in range(60)]
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text("\n".join(json.dumps(row) for row in rows))
    settings = {"dataset": str(dataset), "packing": False, "precision": "fp32", "total_steps": 3}
    one = trained(tmp_path / "one", "--max-steps=2", ranks=1, framework="ddp", micro_batch=16, **settings)
    two = trained(tmp_path / "two", "--max-steps=2", ranks=2, zero=2, micro_batch=1, **settings)
    assert [s.loss for s in two] == pytest.approx([s.loss for s in one], abs=5e-6)


def test_fsdp_shards_on_cpus_and_resumes_from_its_shards(tmp_path: Path) -> None:
    """accelerate alone would run DDP here, and write a whole model on rank 0."""
    settings = {"ranks": 2, "framework": "fsdp", "total_steps": 4}
    whole = trained(tmp_path / "whole", **settings)
    path = finetune_runs.write(finetune_runs.tiny_plan(**settings), tmp_path / "halves")
    for arguments in (("--max-steps=2",), ()):
        done = finetune_runs.start(path, 2, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Warning" not in done.stderr
    assert [step.loss for step in read_steps(tmp_path / "halves" / "run")] == [step.loss for step in whole]
    shards = list((tmp_path / "halves" / "run" / "checkpoint-4" / "pytorch_model_fsdp_0").glob("*.distcp"))
    assert len(shards) == 2


def test_a_stop_file_ends_a_single_process_with_its_own_code_and_lora_resumes(tmp_path: Path) -> None:
    path = finetune_runs.write(finetune_runs.tiny_plan("ddp", ranks=1, method="lora", total_steps=12), tmp_path)
    with subprocess.Popen(
        finetune_runs.command(path, 1),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=finetune_runs.environment(),
    ) as process:
        steps = tmp_path / "run" / "steps.jsonl"
        deadline = time.monotonic() + 240
        while not (steps.exists() and steps.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        (tmp_path / "run" / "STOP").touch()
        output, _ = process.communicate(timeout=180)
    assert process.returncode == 75, output
    (stopped,) = checkpoint.complete(tmp_path / "run")
    # other intervals than in the first start, whose checkpoint remembers its own
    done = finetune_runs.start(path, 1, "--save-steps=5", "--eval-steps=6", "--keep=9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "do not match" not in done.stdout + done.stderr
    since = checkpoint.facts(stopped)["step"]
    saved = [checkpoint.facts(path)["step"] for path in checkpoint.complete(tmp_path / "run")]
    assert saved == sorted({since, *(step for step in (5, 10) if step > since), 12})
    evaluated = [entry.step for entry in read_evaluations(tmp_path / "run")]
    assert set(evaluated) == {*(step for step in (6,) if step >= since), 12}
    adapters = tmp_path / "run" / "model" / "adapter_model.safetensors"
    assert adapters.stat().st_size < 4 * finetune_runs.PARAMETERS  # the base is not saved again
    fallen = losses(tmp_path)
    assert len(fallen) == 12 and fallen[-1] < fallen[0]
