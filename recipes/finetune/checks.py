"""What must agree before a minute of GPU time is spent: the plan, the processes started, and ds_config.json.

Pure, and run before torch is imported, so that a job which cannot be right ends in its first second
with every problem in one message.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from recipes.finetune import chat, on_this_machine
from recipes.finetune.on_this_machine import PAGED
from recipes.schedule import SCHEDULES
from toolkit import strategy as strategies
from toolkit.errors import Problems, ToolkitError
from toolkit.estimate.loading import elastic_loading_bytes
from toolkit.plan import Plan
from toolkit.units import format_bytes

FRAMEWORKS = ("ddp", "deepspeed", "fsdp")
OPTIMIZERS = ("adamw", "adamw_unfused", "adamw_paged", "adamw_8bit", "adamw_8bit_paged", "sgd")
METHODS = ("full", "lora", "qlora")
PRECISIONS = ("bf16", "fp16", "fp32")
AGAIN = "write it again with: toolkit emit PLAN.json --out DIR"


def is_cpu(plan: Plan) -> bool:
    """Whether the plan is for processors without an accelerator."""
    return plan.cluster.accelerator.is_cpu


def check(plan: Plan, world_size: int, ds_config: dict[str, Any] | None, here: bool = False) -> None:
    """Raise ToolkitError with all problems, or return; ``here``: with those of this machine (packages, files)."""
    with Problems() as problems:
        if here:
            on_this_machine.check(problems, plan)
        _check_program(problems, plan)
        check_contract(problems, plan)
        _check_batch(problems, plan, world_size)
        if is_cpu(plan):
            _check_cpu(problems, plan)
        if plan.strategy.framework == "fsdp" and strategies.OFFLOAD[plan.strategy.offload] == "optimizer":
            problems.add(
                "FSDP offloads parameters and optimizer together, the plan offloads the optimizer only",
                "plan again with offload none or optimizer+parameters, or with --framework deepspeed",
            )
        if ds_config is not None and plan.strategy.framework == "deepspeed":
            _check_ds_batch(problems, plan, ds_config)
            _check_ds_sections(problems, plan, ds_config)


def require_no_pattern(plan: Plan, folder: Path) -> None:
    """Raise ToolkitError for an output folder in which DeepSpeed would not find what it has saved.

    It looks for the parts of a checkpoint with ``glob``, as does the Trainer (``integrations/deepspeed.py``,
    transformers 5.24), and neither quotes the path.
    """
    if plan.strategy.framework == "deepspeed" and glob.escape(str(folder)) != str(folder):
        raise ToolkitError(
            f"DeepSpeed takes {folder} for a pattern, and would not find its checkpoints there",
            remedy="give an --output-dir without [ ? *",
        )


def _check_program(problems: Problems, plan: Plan) -> None:
    strategy = plan.strategy
    if plan.program != "finetune":
        problems.add(f"the plan is for the program {plan.program!r}", f"start recipes.{plan.program}.train instead")
    if strategy.framework not in FRAMEWORKS:
        problems.add(
            f"the plan's framework is {strategy.framework!r}; this program runs {', '.join(FRAMEWORKS)}",
            "plan again with --framework deepspeed or fsdp",
        )
    split = [f"{axis} {getattr(strategy, axis)}" for axis in ("tp", "pp", "cp", "ep") if getattr(strategy, axis) != 1]
    if split:
        problems.add(
            f"this program is data parallel only, the plan has {', '.join(split)}",
            "plan again with --tp 1 --pp 1 --cp 1 --ep 1, or pretrain with Megatron",
        )
    if strategies.RECOMPUTE[strategy.recompute] == "selective":
        problems.add(
            "Hugging Face models recompute whole layers, the plan says selective",
            "plan again with --recompute none or full",
        )


def check_contract(problems: Problems, plan: Plan) -> None:
    """Add what this program cannot do of a contract, and what the plan says otherwise elsewhere."""
    contract, workload = plan.contract, plan.workload
    for name in ("sequence_length", "global_batch_size", "precision", "method", "optimizer", "objective"):
        promised, planned = getattr(contract, name), getattr(workload, name)
        if promised != planned:
            problems.add(
                f"{name} is {promised} in the plan's contract and {planned} in its workload",
                "make the plan again with toolkit plan",
            )
    for name, allowed in (
        ("optimizer", OPTIMIZERS),
        ("method", METHODS),
        ("precision", PRECISIONS),
        ("schedule", SCHEDULES),
    ):
        if getattr(contract, name) not in allowed:
            problems.add(
                f"{name} {getattr(contract, name)!r} is not one of {', '.join(allowed)}", "change it in the recipe"
            )
    if contract.chat_template and contract.chat_template not in chat.shipped():
        problems.add(
            f"chat_template {contract.chat_template!r} is not one of {', '.join(chat.shipped())}",
            "change it in the recipe; empty: the tokenizer's own",
        )
    for name in ("model", "dataset"):
        if not getattr(contract, name):
            problems.add(f"the contract names no {name}", f"plan with a --recipe, or set contract.{name} in plan.json")
    if contract.sequence_length < 2:
        problems.add(
            f"sequence_length is {contract.sequence_length}", "a token is predicted from those before it: 2 or more"
        )
    longest = plan.model.max_position_embeddings
    if longest and contract.sequence_length > longest:
        problems.add(
            f"sequence_length {contract.sequence_length} exceeds the model's {longest} positions",
            "train on shorter sequences, or on a model made for longer ones",
        )


def _check_batch(problems: Problems, plan: Plan, world_size: int) -> None:
    strategy = plan.strategy
    planned = strategy.tp * strategy.pp * strategy.cp * strategy.dp
    if world_size != planned:
        problems.add(
            f"{world_size} process(es) were started, the plan is for {planned}",
            f"start {planned} (nodes x --nproc-per-node), or plan again with --gpus {world_size}:"
            " the global batch stays, the accumulation changes",
        )
    batch = strategy.micro_batch_size * strategy.gradient_accumulation_steps * strategy.dp
    if batch != plan.contract.global_batch_size:
        problems.add(
            f"micro batch {strategy.micro_batch_size} x accumulation {strategy.gradient_accumulation_steps}"
            f" x {strategy.dp} ranks = {batch}, the contract's global batch is {plan.contract.global_batch_size}",
            "make the plan again with toolkit plan",
        )


def _check_cpu(problems: Problems, plan: Plan) -> None:
    if plan.strategy.framework == "fsdp" and plan.strategy.dp == 1:
        problems.add(
            "FSDP on one CPU process shards nothing, and accelerate leaves it out", "plan with --framework ddp"
        )
    if plan.contract.precision == "fp16":
        problems.add("fp16 does not train on CPUs (DeepSpeed: 'fp16 is not supported on your device')", "use bf16")
    if plan.contract.method == "qlora":
        problems.add("QLoRA needs the 4-bit kernels of bitsandbytes on a GPU", "use method lora on CPUs")
    if plan.contract.optimizer in PAGED:
        problems.add(
            f"{plan.contract.optimizer} needs the kernels of bitsandbytes on a GPU", "use optimizer adamw on CPUs"
        )


def _check_ds_batch(problems: Problems, plan: Plan, ds_config: dict[str, Any]) -> None:
    strategy = plan.strategy
    for key, value in (
        ("train_batch_size", plan.contract.global_batch_size),
        ("train_micro_batch_size_per_gpu", strategy.micro_batch_size),
        ("gradient_accumulation_steps", strategy.gradient_accumulation_steps),
    ):
        _expect(problems, ds_config, key, value)


def _check_ds_sections(problems: Problems, plan: Plan, ds_config: dict[str, Any]) -> None:
    contract, strategy = plan.contract, plan.strategy
    _expect(problems, ds_config, "zero_optimization.stage", strategy.zero_stage, absent=0)
    _expect(problems, ds_config, "bf16.enabled", contract.precision == "bf16", absent=False)
    _expect(problems, ds_config, "fp16.enabled", contract.precision == "fp16", absent=False)
    _expect(problems, ds_config, "gradient_clipping", contract.gradient_clipping, absent=0.0)
    whole = _look_up(ds_config, "zero_optimization.stage3_gather_16bit_weights_on_model_save")
    if strategy.zero_stage == 3 and whole is not True:  # accelerate takes auto for false
        problems.add(
            "ds_config: zero_optimization.stage3_gather_16bit_weights_on_model_save is"
            f" {'absent' if whole is None else whole}: no usable model would be saved at stage 3",
            AGAIN,
        )
    offload = strategies.OFFLOAD[strategy.offload]
    for section, wanted in (
        ("offload_optimizer", offload != "none"),
        ("offload_param", offload == "optimizer+parameters"),
    ):
        device = _look_up(ds_config, f"zero_optimization.{section}.device")
        if (device not in (None, "none")) != wanted:
            problems.add(
                f"ds_config: {section}.device is {device or 'absent'}, the plan's offload is {offload}",
                AGAIN,
            )
    if _look_up(ds_config, "zero_optimization.elastic_checkpoint"):
        ranks = min(plan.cluster.gpus_per_node, plan.cluster.num_gpus)
        needed = format_bytes(elastic_loading_bytes(1.0 * ranks, plan.total_parameters))
        problems.add(
            "ds_config: zero_optimization.elastic_checkpoint is on: every rank would read the optimizer's shards of"
            f" all, {needed} of host memory on a node of {ranks}; DeepSpeed 0.19.8 refuses other ranks all the same",
            "leave it out: the program goes on with any number of ranks by itself",
        )
    if "optimizer" in ds_config:
        _expect(problems, ds_config, "optimizer.params.lr", contract.learning_rate)
        _expect(problems, ds_config, "optimizer.params.betas", [contract.adam_beta1, contract.adam_beta2])
        _expect(problems, ds_config, "optimizer.params.eps", contract.adam_epsilon)
        _expect(problems, ds_config, "optimizer.params.weight_decay", contract.weight_decay)
    if "scheduler" in ds_config:
        problems.add(
            "ds_config: a scheduler section would overrule the learning rate of the plan's contract",
            "remove the section: the program follows the contract's schedule",
        )


def _look_up(ds_config: dict[str, Any], path: str) -> Any:
    value: Any = ds_config
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def _expect(problems: Problems, ds_config: dict[str, Any], path: str, wanted: Any, absent: Any = None) -> None:
    """One value of ds_config must be the plan's, of the right type, or the word ``auto``."""
    found = _look_up(ds_config, path)
    if found is None:
        found = absent if absent is not None else wanted
    if found == "auto":
        return
    if isinstance(found, str):
        problems.add(f"ds_config: {path} is the text {found!r}, it must be a {_kind(wanted)} (or the word auto)", AGAIN)
    elif isinstance(found, bool) != isinstance(wanted, bool) or found != wanted:
        problems.add(f"ds_config: {path} is {found}, the plan has {wanted}", AGAIN)


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", list: "list"}
    return kinds[type(value)]
