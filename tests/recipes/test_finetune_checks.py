"""What the fine-tuning program refuses, and that it names every problem at once, before it imports torch."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recipes.finetune import arguments, checks
from tests import finetune_runs
from tests.plans import DGX, LLAMA_8B, all_plans, plan
from toolkit.emit import deepspeed
from toolkit.errors import ToolkitError
from toolkit.plan import Plan

FINETUNE = {name: made for name, made in all_plans().items() if made.program == "finetune"}


def problems(made: Plan, world_size: int, ds_config: dict[str, Any] | None = None) -> str:
    with pytest.raises(ToolkitError) as caught:
        checks.check(made, world_size, ds_config)
    return "\n".join(str(problem) for problem in caught.value.problems)


def changed(made: Plan, **strategy: Any) -> Plan:
    return msgspec.structs.replace(made, strategy=msgspec.structs.replace(made.strategy, **strategy))


@pytest.mark.parametrize("name", FINETUNE)
def test_what_is_emitted_is_accepted(name: str) -> None:
    made = FINETUNE[name]
    if made.strategy.framework != "deepspeed":
        checks.check(made, made.cluster.num_gpus, None)
        return
    checks.check(made, made.cluster.num_gpus, deepspeed.config(made))
    checks.check(made, made.cluster.num_gpus, deepspeed.auto_twin(made))


def test_a_triple_that_is_right_for_8_ranks_is_right() -> None:
    """256 = 4 x 8 x 8; read with a world size of 1 it looks wrong."""
    made = plan(
        "x",
        LLAMA_8B,
        msgspec.structs.replace(DGX, nodes=1),
        zero_stage=2,
        micro_batch_size=4,
        gradient_accumulation_steps=8,
    )
    assert made.contract.global_batch_size == 256
    checks.check(made, 8, deepspeed.config(made))


def test_numbers_as_text_are_refused_with_path_and_type() -> None:
    made = finetune_runs.tiny_plan()
    config = deepspeed.config(made) | {"gradient_accumulation_steps": "2"}
    assert "gradient_accumulation_steps is the text '2', it must be a number (or the word auto)" in problems(
        made, 2, config
    )
    config = deepspeed.config(made) | {"bf16": {"enabled": "true"}}
    assert "bf16.enabled is the text 'true', it must be a boolean" in problems(made, 2, config)


def test_all_problems_of_the_batch_at_once() -> None:
    made = finetune_runs.tiny_plan()
    config = deepspeed.config(made) | {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
    }
    said = problems(made, 4, config)
    assert "4 process(es) were started, the plan is for 2" in said
    for key, found, wanted in (
        ("train_batch_size", 32, 16),
        ("train_micro_batch_size_per_gpu", 8, 4),
        ("gradient_accumulation_steps", 1, 2),
    ):
        assert f"{key} is {found}, the plan has {wanted}" in said


def test_the_global_batch_is_the_contracts() -> None:
    assert "= 8, the contract's global batch is 16" in problems(
        changed(finetune_runs.tiny_plan(), gradient_accumulation_steps=1), 2
    )


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("zero_optimization", {"stage": 3}, "zero_optimization.stage is 3, the plan has 2"),
        ("zero_optimization", {}, "zero_optimization.stage is 0, the plan has 2"),
        ("fp16", {"enabled": True}, "fp16.enabled is True, the plan has False"),
        ("bf16", {"enabled": False}, "bf16.enabled is False, the plan has True"),
        ("gradient_clipping", 0.5, "gradient_clipping is 0.5, the plan has 1.0"),
        ("scheduler", {"type": "WarmupLR"}, "would overrule the learning rate"),
        ("optimizer", {"type": "AdamW", "params": {"lr": 1e-3}}, "optimizer.params.lr is 0.001, the plan has 0.003"),
        (
            "zero_optimization",
            {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            "offload_optimizer.device is cpu, the plan's offload is none",
        ),
    ],
)
def test_a_configuration_of_another_plan_is_refused(section: str, value: Any, message: str) -> None:
    made = finetune_runs.tiny_plan()
    assert message in problems(made, 2, deepspeed.config(made) | {section: value})


def test_cpus_refuse_what_would_not_run_or_run_as_something_else() -> None:
    assert "FSDP on one CPU process shards nothing" in problems(finetune_runs.tiny_plan("fsdp", ranks=1), 1)
    assert "fp16 does not train on CPUs" in problems(finetune_runs.tiny_plan(precision="fp16"), 2)
    assert "QLoRA" in problems(finetune_runs.tiny_plan("ddp", method="qlora"), 2)


def test_data_parallel_only() -> None:
    made = changed(finetune_runs.tiny_plan(ranks=1), tp=2, ep=1)
    assert "data parallel only, the plan has tp 2" in problems(made, 2)
    assert "the plan says selective" in problems(changed(finetune_runs.tiny_plan(), recompute=1), 2)


def test_sequences_longer_than_the_model() -> None:
    made = finetune_runs.tiny_plan(sequence_length=512)
    assert "sequence_length 512 exceeds the model's 256 positions" in problems(made, 2)


def test_contract_and_workload_agree() -> None:
    made = finetune_runs.tiny_plan()
    other = msgspec.structs.replace(made, workload=msgspec.structs.replace(made.workload, global_batch_size=32))
    assert "global_batch_size is 16 in the plan's contract and 32 in its workload" in problems(other, 2)


def run(path: Path, world_size: int, *more: str) -> subprocess.CompletedProcess[str]:
    """The program as torchrun would start rank 0, with every import of torch made to fail."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = sys.modules['deepspeed'] = None\n"
        "from recipes.finetune.train import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    environment = finetune_runs.environment(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(world_size))
    return subprocess.run(
        [sys.executable, "-c", code, "--plan", str(path), *more], capture_output=True, text=True, env=environment
    )


def test_a_wrong_world_size_is_a_sentence_and_exit_2_before_torch(tmp_path: Path) -> None:
    done = run(finetune_runs.write(finetune_runs.tiny_plan(), tmp_path), 3)
    assert done.returncode == 2
    assert "error: 3 process(es) were started, the plan is for 2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "message"), [("", "ds_config.json: "), ("[]", "not a JSON object"), ("{'a': 1}", "ds_config.json: ")]
)
def test_a_broken_ds_config_is_a_sentence(tmp_path: Path, content: str, message: str) -> None:
    path = finetune_runs.write(finetune_runs.tiny_plan(), tmp_path)
    (tmp_path / "ds_config.json").write_text(content)
    done = run(path, 2)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert message in done.stderr


def test_missing_files_are_sentences(tmp_path: Path) -> None:
    done = run(tmp_path / "plan.json", 2)
    assert done.returncode == 2 and "cannot read" in done.stderr
    path = finetune_runs.write(finetune_runs.tiny_plan(), tmp_path)
    (tmp_path / "ds_config.json").unlink()
    done = run(path, 2)
    assert done.returncode == 2 and "ds_config.json" in done.stderr
    done = run(finetune_runs.write(finetune_runs.tiny_plan("ddp"), tmp_path / "ddp"), 2, "--deepspeed", "x.json")
    assert done.returncode == 2 and "the plan's framework is ddp" in done.stderr


@pytest.mark.parametrize("name", ["run [1]", "run*", "lr?"])
def test_deepspeed_would_not_find_its_checkpoints_in_a_folder_that_is_a_pattern(tmp_path: Path, name: str) -> None:
    """Each start after the first would end in the Trainer's "Can't find a valid checkpoint"."""
    done = run(finetune_runs.write(finetune_runs.tiny_plan(), tmp_path), 2, "--output-dir", str(tmp_path / name))
    assert done.returncode == 2 and f"DeepSpeed takes {tmp_path / name} for a pattern" in done.stderr
    checks.require_no_pattern(finetune_runs.tiny_plan("ddp"), tmp_path / name)


def test_a_finished_run_ends_at_once(tmp_path: Path) -> None:
    from recipes import resume
    from toolkit.runtime import checkpoint

    made = finetune_runs.tiny_plan()
    path = finetune_runs.write(made, tmp_path)
    (tmp_path / "run").mkdir()
    checkpoint.mark_finished(tmp_path / "run", resume.facts(made) | {"step": 60})
    done = run(path, 2)
    assert done.returncode == 0 and "finished before, at step 60" in done.stdout
    done = run(finetune_runs.write(finetune_runs.tiny_plan(learning_rate=1.0), tmp_path), 2)
    assert done.returncode == 2 and "the finished run in" in done.stderr
    assert "belongs to another experiment: learning_rate is 0.003 there and 1.0 in this plan" in done.stderr


def test_arguments_follow_the_plan() -> None:
    made = changed(finetune_runs.tiny_plan("ddp"), recompute=2)
    values = arguments.training_arguments(made, "out", None, 100, [])
    assert values["per_device_train_batch_size"] * values["gradient_accumulation_steps"] * 2 == 16
    assert (values["use_cpu"], values["bf16"], values["fp16"]) == (True, True, False)
    assert values["activation_checkpointing"] and values["activation_checkpointing_kwargs"] == {"use_reentrant": False}
    assert values["report_to"] == "none"
    assert "deepspeed" not in values and "fsdp" not in values


def test_fsdp_recomputes_through_fsdp_and_hybrid_is_not_lost() -> None:
    full = arguments.fsdp_config(FINETUNE["fsdp"])
    assert full["reshard_after_forward"] and full["activation_checkpointing"]
    assert not arguments.fsdp_config(changed(FINETUNE["fsdp"], zero_stage=2))["reshard_after_forward"]
    assert "activation_checkpointing" not in arguments.training_arguments(FINETUNE["fsdp"], "out", None, 1, [])


def test_the_optimizer_of_the_configuration_is_left_to_the_program() -> None:
    """Built by DeepSpeed it would decay norms; mapped by accelerate it would lose betas and epsilon."""
    config = {"optimizer": {"type": "AdamW", "params": {}}, "train_batch_size": 16}
    assert arguments.deepspeed_config(config) == {"train_batch_size": 16, "zero_force_ds_cpu_optimizer": False}
    assert "optimizer" in config
    json.dumps(arguments.training_arguments(FINETUNE["zero3-offload"], "out", config, 1, []))


def here(made: Plan) -> str:
    with pytest.raises(ToolkitError) as caught:
        checks.check(made, made.cluster.num_gpus, None, here=True)
    return "\n".join(str(problem) for problem in caught.value.problems)


def test_a_model_at_stage_3_must_be_gathered_to_be_saved() -> None:
    made = finetune_runs.tiny_plan(zero=3)
    config = deepspeed.config(made)
    for value in (False, "auto"):  # accelerate takes auto for false
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = value
        assert f"model_save is {value}: no usable model" in problems(made, 2, config)
    del config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"]
    assert "model_save is absent" in problems(made, 2, config)


def test_what_is_not_there_is_said_with_everything_else(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    made = finetune_runs.tiny_plan("ddp", model=gone, tokenizer=gone, dataset=gone + ".jsonl")
    said = problems(changed(made, gradient_accumulation_steps=1), 2)
    assert "gone" not in said  # what does not concern the plan is looked for on the machine that trains
    said = here(changed(made, gradient_accumulation_steps=1))
    assert "= 8, the contract's global batch is 16" in said
    assert said.count("does not exist") == 3
    (tmp_path / "gone").mkdir()
    assert "is a folder without config.json" in here(made)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed here")
def test_methods_say_what_they_need_where_it_is_missing() -> None:
    assert "method qlora needs bitsandbytes, not installed\n  pip install '.[qlora]'" in here(FINETUNE["qlora"])
    made = FINETUNE["zero1"]
    paged = msgspec.structs.replace(
        made,
        contract=msgspec.structs.replace(made.contract, optimizer="adamw_8bit"),
        workload=msgspec.structs.replace(made.workload, optimizer="adamw_8bit"),
    )
    assert "optimizer adamw_8bit needs bitsandbytes" in here(paged)
    said = here(finetune_runs.tiny_plan("ddp", method="qlora"))
    assert "QLoRA needs the 4-bit kernels of bitsandbytes on a GPU" in said and "not installed" not in said


def test_true_is_not_the_number_one() -> None:
    """In Python True == 1, in DeepSpeed a stage of true is none of its stages."""
    made = changed(finetune_runs.tiny_plan(), zero_stage=1)
    config = deepspeed.config(made)
    config["zero_optimization"]["stage"] = True
    assert "zero_optimization.stage is True, the plan has 1" in problems(made, 2, config)
