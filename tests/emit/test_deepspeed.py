"""The DeepSpeed file: exact numbers, no key without effect, nothing that overrules the contract."""

import dataclasses
import json
import subprocess
import sys
import types

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import plans
from toolkit.emit import deepspeed
from toolkit.errors import ToolkitError
from toolkit.plan import Plan

PLANS = {name: plan for name, plan in plans.all_plans().items() if plan.strategy.framework == "deepspeed"}
# transformers 5.24.0 integrations/deepspeed.py fills these and no others of what is written here
FILLED = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16.enabled",
    "fp16.enabled",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
}


def paths(config: dict, prefix: str = "") -> dict[str, object]:
    found = {}
    for key, value in config.items():
        found |= paths(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def zero3(hidden_size: int) -> Plan:
    model = msgspec.structs.replace(plans.LLAMA_8B, hidden_size=hidden_size)
    return plans.plan("sizes", model, plans.DGX, zero_stage=3)


@pytest.mark.parametrize(
    ("hidden_size", "bucket", "prefetch", "persistence"),
    [
        (4096, 16777216, 15099494, 40960),
        (3584, 12845056, 11560550, 35840),
        (3072, 9437184, 8493465, 30720),
        (2048, 4194304, 3774873, 20480),
        (64, 4096, 3686, 640),
    ],
)
def test_bucket_sizes_are_the_integers_that_auto_stands_for(
    hidden_size: int, bucket: int, prefetch: int, persistence: int
) -> None:
    # prefetch: the fractions that DeepSpeed refuses, in issues DeepSpeed 6525, LlamaFactory 5252 and 5795
    zero = deepspeed.config(zero3(hidden_size))["zero_optimization"]
    assert zero["reduce_bucket_size"] == bucket
    assert zero["stage3_prefetch_bucket_size"] == prefetch
    assert zero["stage3_param_persistence_threshold"] == persistence


@given(st.integers(1, 200_000))
def test_every_size_is_an_integer_for_every_width(hidden_size: int) -> None:
    zero = deepspeed.config(zero3(hidden_size))["zero_optimization"]
    assert all(type(value) is int for key, value in zero.items() if key.endswith(("size", "threshold", "parameters")))


@pytest.mark.parametrize("name", PLANS)
def test_no_text_where_a_number_belongs_and_no_auto(name: str) -> None:
    values = paths(deepspeed.config(PLANS[name]))
    texts = {path for path, value in values.items() if isinstance(value, str)}
    assert texts <= {
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_param.device",
        "data_types.grad_accum_dtype",
    }
    assert "auto" not in values.values()


@pytest.mark.parametrize("name", PLANS)
def test_the_batch_triple_holds_at_the_planned_number_of_ranks(name: str) -> None:
    plan, config = PLANS[name], deepspeed.config(PLANS[name])
    product = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * plan.strategy.dp
    assert config["train_batch_size"] == product == plan.contract.global_batch_size


@pytest.mark.parametrize("name", PLANS)
def test_no_key_without_effect_at_its_stage(name: str) -> None:
    plan = PLANS[name]
    zero = deepspeed.config(plan)["zero_optimization"]
    stage = plan.strategy.zero_stage
    if stage == 0:
        assert set(zero) == {"stage"}
    if stage < 3:
        assert not [key for key in zero if key.startswith(("stage3_", "sub_group", "zero_hpz"))]
        assert "offload_param" not in zero
    assert "allgather_bucket_size" not in zero  # dead in 0.19.8: runtime/utils.py:1019


def test_stage_1_with_fp32_sums_runs_an_optimizer_without_buckets() -> None:
    work = {"gradient_accumulation_dtype": "fp32"}
    assert deepspeed.config(plans.plan("sums", plans.LLAMA_8B, plans.DGX, zero_stage=1, workload=work))[
        "zero_optimization"
    ] == {"stage": 1}


@pytest.mark.parametrize("name", PLANS)
def test_nothing_overrules_the_learning_rate(name: str) -> None:
    # a scheduler without warmup_max_lr trains at 1e-3 whatever the optimizer says: DeepSpeed issue 7303
    assert not {"scheduler", "optimizer"} & set(deepspeed.config(PLANS[name]))


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_at_most_one_sixteen_bit_section(precision: str) -> None:
    plan = plans.plan("p", plans.LLAMA_8B, plans.DGX, zero_stage=2, workload={"precision": precision})
    for config in (deepspeed.config(plan), deepspeed.auto_twin(plan)):
        sections = {"bf16", "fp16"} & set(config)
        assert sections == ({precision} - {"fp32"})
        assert "loss_scale" not in config.get("bf16", {})


@pytest.mark.parametrize("name", PLANS)
def test_the_twin_says_auto_only_where_transformers_fills_it(name: str) -> None:
    concrete, twin = paths(deepspeed.config(PLANS[name])), paths(deepspeed.auto_twin(PLANS[name]))
    assert concrete.keys() == twin.keys()
    assert {path for path, value in twin.items() if value == "auto"} == FILLED & concrete.keys()
    assert all(twin[path] in (value, "auto") for path, value in concrete.items())


def test_a_text_config_is_not_needed_for_the_sizes() -> None:
    # the sizes come from the plan, so a vision-language model's nested hidden_size (LlamaFactory 4754) is resolved
    zero = deepspeed.config(zero3(4096))["zero_optimization"]
    assert [zero[key] for key in ("reduce_bucket_size", "stage3_prefetch_bucket_size")] == [16777216, 15099494]


def refused(plan: Plan) -> str:
    with pytest.raises(ToolkitError) as caught:
        deepspeed.config(plan)
    return str(caught.value)


def changed(name: str, **strategy: int) -> Plan:
    plan = PLANS[name]
    return msgspec.structs.replace(plan, strategy=msgspec.structs.replace(plan.strategy, **strategy))


def test_what_deepspeed_would_ignore_silently_is_refused() -> None:
    assert "parameter offload at ZeRO stage 2" in refused(changed("zero2-offload", offload=2))
    assert "optimizer offload at ZeRO stage 0" in refused(changed("zero0", offload=1))
    assert "hpz 3" in refused(changed("zero3-hpz", hpz=3))
    assert "hpz 8" in refused(changed("zero2-offload", hpz=8))
    assert "tp 2" in refused(changed("zero3", tp=2, dp=8, gradient_accumulation_steps=16))
    assert "fp32 gradient sums at ZeRO stage 0" in refused(changed("zero2-fp32-sums", zero_stage=0))
    half = plans.plan("half", plans.LLAMA_8B, plans.DGX, zero_stage=0, workload={"precision": "fp16"})
    assert "a loss scale that it has not multiplied the loss by" in refused(half)


def test_a_batch_that_does_not_multiply_out_is_refused_with_the_numbers() -> None:
    message = refused(changed("zero3", gradient_accumulation_steps=7))
    assert "micro batch 1 x accumulation 7 x dp 16 = 112, but the global batch is 128" in message


def test_all_problems_are_told_at_once() -> None:
    message = refused(changed("zero2-offload", offload=2, hpz=8, micro_batch_size=3))
    assert {"parameter offload", "hpz 8", "global batch"} <= {
        w for w in ("parameter offload", "hpz 8", "global batch") if w in message
    }


def test_a_contract_that_differs_from_the_workload_is_refused() -> None:
    plan = PLANS["zero3"]
    contract = msgspec.structs.replace(plan.contract, precision="fp16")
    assert "precision is 'bf16'" in refused(msgspec.structs.replace(plan, contract=contract))


# Reads {name: [config, world size]}, answers {name: what DeepSpeed's own class understood}.
DEEPSPEED_READS = """
import contextlib, json, os, sys
with contextlib.redirect_stdout(sys.stderr):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    import deepspeed
    from deepspeed.runtime import config as module
    answers = {}
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    world = int(sys.argv[1])
    os.environ.update(RANK="0", WORLD_SIZE=str(world), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
    from deepspeed.runtime.zero import config as zero_module
    names = [*vars(module).values(), *vars(zero_module).values()]
    known = {value for value in names if isinstance(value, str)}  # the constants that its code looks keys up by
    def device(part):
        return str(getattr(part.device, "value", part.device))
    for name, config in json.load(sys.stdin).items():
        try:
            read = module.DeepSpeedConfig(config)
        except Exception as error:
            answers[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        zero = read.zero_config
        answers[name] = {
            "unknown": sorted(set(config) - known),
            "world_size": read.world_size,
            "batch": [read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps],
            "stage": int(zero.stage),
            "bf16": read.bfloat16_config.enabled,
            "fp16": read.float16_config.enabled,
            "clipping": read.gradient_clipping,
            "bucket": zero.reduce_bucket_size,
            "prefetch": zero.prefetch_bucket_size,
            "threshold": zero.param_persistence_threshold,
            "hpz": zero.zero_hpz_partition_size,
            "offload": [part and device(part) for part in (zero.offload_optimizer, zero.offload_param)],
            "sums": read.grad_accum_dtype,
        }
print(json.dumps(answers))
"""


def deepspeed_reads(configs: dict[str, dict], world_size: int) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-c", DEEPSPEED_READS, str(world_size)],
        input=json.dumps(configs),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 16])
def test_deepspeeds_own_class_reads_what_the_plan_says(world_size: int) -> None:
    mine = {name: plan for name, plan in PLANS.items() if plan.strategy.dp == world_size}
    configs = {name: deepspeed.config(plan) for name, plan in mine.items()}
    wrong = {"fraction": zero3_with_fraction(), "batch": deepspeed.config(PLANS["zero3"]) | {"train_batch_size": 500}}
    answers = deepspeed_reads(configs | wrong, world_size)
    assert "error" in answers.pop("fraction") and "error" in answers.pop("batch")  # the oracle can say no
    assert answers.keys() == mine.keys() and mine
    for name, plan in mine.items():
        read, s, h = answers[name], plan.strategy, plan.model.hidden_size
        assert read.get("unknown") == [], read
        assert read["world_size"] == world_size
        assert read["batch"] == [plan.contract.global_batch_size, s.micro_batch_size, s.gradient_accumulation_steps]
        assert read["stage"] == s.zero_stage
        assert [read["bf16"], read["fp16"]] == [plan.workload.precision == "bf16", plan.workload.precision == "fp16"]
        assert read["clipping"] == plan.contract.gradient_clipping
        assert read["offload"] == ["cpu" if s.offload else None, "cpu" if s.offload == 2 else None]
        assert read["hpz"] == s.hpz
        if s.zero_stage:
            assert read["bucket"] == h * h
        if s.zero_stage == 3:
            assert [read["prefetch"], read["threshold"]] == [int(0.9 * h * h), 10 * h]
        wanted = plan.workload.gradient_accumulation_dtype
        assert read["sums"] == (None if wanted == "default" else wanted)


def zero3_with_fraction() -> dict:
    config = deepspeed.config(PLANS["zero3"])
    config["zero_optimization"]["stage3_prefetch_bucket_size"] = 15099494.4
    return config


@dataclasses.dataclass
class TrainerArguments:
    """The fields of TrainingArguments that the integration reads."""

    world_size: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    max_grad_norm: float
    bf16: bool
    fp16: bool
    learning_rate: float = 2.0e-5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_epsilon: float = 1.0e-8
    weight_decay: float = 0.0
    save_on_each_node: bool = False
    bf16_full_eval: bool = False
    fp16_full_eval: bool = False

    def get_warmup_steps(self, steps: int) -> int:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_transformers_fills_the_twin_to_the_concrete_file(name: str) -> None:
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    plan = PLANS[name]
    arguments = TrainerArguments(
        world_size=plan.strategy.dp,
        per_device_train_batch_size=plan.strategy.micro_batch_size,
        gradient_accumulation_steps=plan.strategy.gradient_accumulation_steps,
        max_grad_norm=plan.contract.gradient_clipping,
        bf16=plan.workload.precision == "bf16",
        fp16=plan.workload.precision == "fp16",
    )
    model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=plan.model.hidden_size))
    filled = HfTrainerDeepSpeedConfig(deepspeed.auto_twin(plan))
    filled.trainer_config_process(arguments)
    filled.trainer_config_finalize(arguments, model, 100)
    assert filled.config == deepspeed.config(plan)
    concrete = HfTrainerDeepSpeedConfig(deepspeed.config(plan))  # and the concrete file has no mismatch
    concrete.trainer_config_process(arguments)
    concrete.trainer_config_finalize(arguments, model, 100)
    assert concrete.config == deepspeed.config(plan)


def test_offload_keeps_the_buckets_also_with_float32_sums() -> None:
    """engine.py 0.19.8 takes the optimizer without buckets at stage 1 with float32 sums, but not under offload."""
    sums = {"gradient_accumulation_dtype": "fp32"}
    for offload, bucketed in ((0, False), (1, True)):
        made = plans.plan("x", plans.LLAMA_8B, plans.DGX, zero_stage=1, offload=offload, workload=sums)
        assert ("reduce_bucket_size" in deepspeed.config(made)["zero_optimization"]) == bucketed
