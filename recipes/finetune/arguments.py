"""A plan as keyword arguments of ``transformers.TrainingArguments`` (5.24), and as a DeepSpeed configuration."""

from __future__ import annotations

import copy
from typing import Any

from recipes.finetune.checks import is_cpu
from toolkit import strategy as strategies
from toolkit.plan import Plan

# Trainer's names of the optimizers; the fused kernel needs a GPU
OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw_unfused": "adamw_torch",
    "adamw_paged": "paged_adamw_32bit",
    "adamw_8bit": "adamw_bnb_8bit",
    "adamw_8bit_paged": "paged_adamw_8bit",
    "sgd": "sgd",
}


def training_arguments(
    plan: Plan,
    output_dir: str,
    ds_config: dict[str, Any] | None,
    save_steps: int,
    report_to: list[str],
    eval_steps: int = 0,
) -> dict[str, Any]:
    """Everything that follows from the plan; how many steps there are, only the data can tell.

    The dataset hands out the sequences in their final order, so sampling is sequential. NaN losses are
    shown as they are: the Trainer's default replaces them by a mean of earlier ones.
    """
    contract, strategy, cpu = plan.contract, plan.strategy, is_cpu(plan)
    recompute = strategies.RECOMPUTE[strategy.recompute] == "full"
    arguments: dict[str, Any] = {
        "output_dir": output_dir,
        "run_name": plan.name,
        "max_steps": 1,
        "per_device_train_batch_size": strategy.micro_batch_size,
        "per_device_eval_batch_size": strategy.micro_batch_size,
        "gradient_accumulation_steps": strategy.gradient_accumulation_steps,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "learning_rate": contract.learning_rate,
        "weight_decay": contract.weight_decay,
        "adam_beta1": contract.adam_beta1,
        "adam_beta2": contract.adam_beta2,
        "adam_epsilon": contract.adam_epsilon,
        "max_grad_norm": contract.gradient_clipping,
        "optim": "adamw_torch" if cpu and contract.optimizer == "adamw" else OPTIMIZERS[contract.optimizer],
        "seed": contract.seed,
        "bf16": contract.precision == "bf16",
        "fp16": contract.precision == "fp16",
        "use_cpu": cpu,
        "ddp_backend": "gloo" if cpu and strategy.dp > 1 else None,
        "ddp_find_unused_parameters": False,
        "ddp_timeout": 7200,  # rank 0 may write a large model while others wait (for tokens none does: waiting.py)
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "average_tokens_across_devices": True,  # one mean over the trained tokens of all ranks and micro batches
        "disable_tqdm": True,  # callbacks.RecordSteps shows the steps, on a terminal as a bar
        "report_to": report_to or "none",
        "eval_strategy": "steps" if eval_steps > 0 else "no",
        "eval_steps": eval_steps if eval_steps > 0 else None,
        "eval_on_start": eval_steps > 0,
        "save_strategy": "steps",
        "save_steps": save_steps,
        "save_total_limit": None,  # old checkpoints go only once a newer one is complete: runtime/checkpoint.py
    }
    if strategy.framework == "fsdp":
        arguments["fsdp"] = True
        arguments["fsdp_config"] = fsdp_config(plan)
        # without it the Trainer accumulates unsharded float32 gradients: 4 bytes a parameter on every GPU
        arguments["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    elif recompute:
        arguments["activation_checkpointing"] = True
        arguments["activation_checkpointing_kwargs"] = {"use_reentrant": False}
    if ds_config is not None and strategy.framework == "deepspeed":
        arguments["deepspeed"] = deepspeed_config(ds_config)
    return arguments


def fsdp_config(plan: Plan) -> dict[str, Any]:
    """FSDP2: stage 3 frees the gathered parameters after the forward pass, stage 2 keeps them until the backward."""
    return {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": plan.strategy.zero_stage == 3,
        "cpu_offload": strategies.OFFLOAD[plan.strategy.offload] == "optimizer+parameters",
        "activation_checkpointing": strategies.RECOMPUTE[plan.strategy.recompute] == "full",
        # sharded while it trains: a full state on rank 0 at every save would need the memory of the whole model
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def deepspeed_config(ds_config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the optimizer left to this program.

    Built by DeepSpeed from JSON, the optimizer would decay norms and biases too, unlike under DDP and
    FSDP. ``zero_force_ds_cpu_optimizer`` is off because accelerate 1.15 otherwise replaces the optimizer of
    an offloaded run by DeepSpeedCPUAdam and drops betas and epsilon on the way
    (``map_pytorch_optim_to_deepspeed``); the program creates that optimizer itself.
    """
    config = copy.deepcopy(ds_config)
    config.pop("optimizer", None)
    config["zero_force_ds_cpu_optimizer"] = False
    return config
