"""What a directory of a plan holds."""

import json
import re

import msgspec
import pytest

from tests import plans
from toolkit import plan as plan_module
from toolkit.emit.bundle import bundle
from toolkit.errors import ToolkitError

PLANS = plans.all_plans()
ALWAYS = {"plan.json", "launch.sh", "train.sbatch", "COMMANDS.txt"}


@pytest.mark.parametrize("name", PLANS)
def test_the_files_of_each_framework(name: str) -> None:
    plan = PLANS[name]
    more = {
        "deepspeed": {"ds_config.json", "ds_config_auto.json", "accelerate.yaml"},
        "ddp": {"accelerate.yaml"},
        "fsdp": {"accelerate.yaml"},
        "megatron": {"megatron_core.json", "megatron_args.txt"},
    }[plan.strategy.framework]
    if name == "tiny-megatron":
        more = {"megatron_core.json"}  # Megatron-LM itself does not run on processors
    files = bundle(plan, "/plans/x")
    assert files.keys() == ALWAYS | more
    assert all(text.endswith("\n") for text in files.values())


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_comes_back_and_writes_the_same_files(name: str) -> None:
    files = bundle(PLANS[name], "/plans/x")
    again = plan_module.load(files["plan.json"])
    assert again == PLANS[name] and bundle(again, "/plans/x") == files


@pytest.mark.parametrize("name", PLANS)
def test_scripts_name_only_files_that_are_there(name: str) -> None:
    files = bundle(PLANS[name], "/plans/x")
    for script in ("launch.sh", "train.sbatch"):
        named = re.findall(r"^(?:deepspeed|megatron|plan)_file=(\S+)$", files[script], re.MULTILINE)
        assert {file for file in named if file != "''"} <= files.keys()
    for word in re.findall(r"/plans/x/(\S+)", files["COMMANDS.txt"]):
        assert word.rstrip(")") in files.keys() | {"run"}


def test_json_files_are_json() -> None:
    for name in ("tiny", "experts"):
        for file, text in bundle(PLANS[name], "d").items():
            if file.endswith(".json"):
                json.loads(text)


def test_commands_quote_the_directory() -> None:
    text = bundle(PLANS["tiny"], "/a b/$(x)")["COMMANDS.txt"]
    assert "$'/a b/$(x)/train.sbatch'" in text and "\n  sbatch /a" not in text


def test_problems_of_all_files_are_told_once() -> None:
    plan = PLANS["zero2-offload"]
    bad = msgspec.structs.replace(
        plan,
        strategy=msgspec.structs.replace(plan.strategy, offload=2, gradient_accumulation_steps=5),
        cluster=plans.with_site(plan.cluster, partition="a b", modules=("-x",), environment={"A B": "1"}),
    )
    with pytest.raises(ToolkitError) as caught:
        bundle(bad, "/plans/x")
    messages = [problem.message for problem in caught.value.problems]
    for words in (
        "parameter offload",
        "global batch is 128",
        "partition 'a b'",
        "module '-x'",
        "'A B' is not the name",
    ):
        assert sum(words in message for message in messages) == 1, words


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": {"tp": 0}},
        {"strategy": {"dp": 0}},
        {"strategy": {"hpz": 0, "zero_stage": 3}},
        {"strategy": {"micro_batch_size": -1}},
        {"strategy": {"framework": "horovod"}},
        {"cluster": {"gpus_per_node": 0}},
        {"cluster": {"nodes": 0}},
        {"model": {"hidden_size": 0}},
        {"model": {"num_hidden_layers": 0}},
        {"workload": {"precision": "int4"}, "contract": {"precision": "int4"}},
        {"workload": {"global_batch_size": 0}, "contract": {"global_batch_size": 0}},
        {"contract": {"schedule": "wsd"}},
        {"workload": {"optimizer": "lion"}, "contract": {"optimizer": "lion"}},
        {"workload": {"gradient_accumulation_dtype": "int8"}},
        {"program": "rm"},
    ],
)
@pytest.mark.parametrize("name", ["zero3", "dense", "fsdp", "interleaved"])
def test_an_edited_plan_is_refused_in_sentences(name: str, changes: dict) -> None:
    plan = PLANS[name]
    for part, values in changes.items():
        new = msgspec.structs.replace(getattr(plan, part), **values) if isinstance(values, dict) else values
        plan = msgspec.structs.replace(plan, **{part: new})
    with pytest.raises(ToolkitError) as caught:
        bundle(plan, "/plans/x")
    assert all(problem.message for problem in caught.value.problems)
