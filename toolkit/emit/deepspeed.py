"""DeepSpeed JSON: a file of concrete numbers, and its twin with ``auto`` where the Trainer fills it in."""

from __future__ import annotations

from typing import Any

from toolkit import deepspeed_defaults as sizes
from toolkit.emit.refusals import require_data_parallel, require_layout
from toolkit.errors import Problems
from toolkit.plan import Plan

Config = dict[str, Any]
AUTO = "auto"
OFFLOADS_OPTIMIZER, OFFLOADS_PARAMETERS = 1, 2


def config(plan: Plan) -> Config:
    """``ds_config.json``: every size an integer, ready for DeepSpeed itself, accelerate and the Trainer.

    Only keys that have an effect at the plan's stage are written: DeepSpeed accepts ``stage3_*`` and
    ``offload_param`` at lower stages and ignores them without a word. There is no scheduler (its own
    peak of 1e-3 would replace the learning rate) and no optimizer: the program makes AdamW (under offload
    DeepSpeedCPUAdam) with two groups, no weight decay on norms and biases. One written here would decay
    every parameter, so that the same contract would learn something else than under DDP or FSDP.
    ``zero_force_ds_cpu_optimizer`` is false under offload, because accelerate 1.15 otherwise replaces that
    optimizer and loses its betas and epsilon. Gradient checkpointing is the model's: no section here.

    Source: DeepSpeed 0.19.8 ``runtime/config.py``, ``runtime/zero/config.py``, ``runtime/engine.py``;
    accelerate 1.15.0 ``utils/deepspeed.py``. Raises ToolkitError for a plan that is not DeepSpeed's.
    """
    _require(plan)
    s, contract = plan.strategy, plan.contract
    values: Config = {
        "train_batch_size": contract.global_batch_size,
        "train_micro_batch_size_per_gpu": s.micro_batch_size,
        "gradient_accumulation_steps": s.gradient_accumulation_steps,
        "gradient_clipping": contract.gradient_clipping,
        **_precision(plan),
        "zero_optimization": _zero(plan),
    }
    if s.offload:
        values["zero_force_ds_cpu_optimizer"] = False
    return values


def auto_twin(plan: Plan) -> Config:
    """``ds_config_auto.json``: the same, with ``auto`` exactly where transformers fills it from its arguments.

    Those are the batch triple, clipping, ``enabled`` of the precision in use, and the three sizes that follow
    from hidden_size. Useful with the Trainer only: plain DeepSpeed takes ``auto`` for text or a default.
    """
    values = config(plan)
    for key in (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    ):
        values[key] = AUTO
    for key in ("bf16", "fp16"):
        if key in values:
            values[key] = values[key] | {"enabled": AUTO}
    zero = values["zero_optimization"]
    for key in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"):
        if key in zero:
            zero[key] = AUTO
    return values


def _require(plan: Plan) -> None:
    s = plan.strategy
    with Problems() as problems:
        if s.framework != "deepspeed":
            problems.add(f"a plan for {s.framework} has no DeepSpeed file", "plan with --framework deepspeed")
        require_layout(problems, plan)
        require_data_parallel(problems, plan)
        if s.offload >= OFFLOADS_OPTIMIZER and s.zero_stage < 1:
            problems.add("optimizer offload at ZeRO stage 0 has no effect", "use --zero 1 or more")
        if s.offload >= OFFLOADS_PARAMETERS and s.zero_stage < 3:
            problems.add(f"parameter offload at ZeRO stage {s.zero_stage} is ignored by DeepSpeed", "use --zero 3")
        if s.offload and plan.workload.optimizer != "adamw":
            problems.add(
                f"optimizer {plan.workload.optimizer!r} cannot be offloaded: only AdamW has a CPU form", "use adamw"
            )
        if s.hpz > 1 and (s.zero_stage < 3 or s.dp % s.hpz or plan.cluster.gpus_per_node % s.hpz):
            problems.add(
                f"hpz {s.hpz} with ZeRO stage {s.zero_stage}, dp {s.dp} and {plan.cluster.gpus_per_node} GPUs per node",
                "hpz needs stage 3 and must divide both dp and the GPUs of a node",
            )
        if plan.workload.gradient_accumulation_dtype == "fp32" and s.zero_stage == 0:
            problems.add("fp32 gradient sums at ZeRO stage 0 fail in DeepSpeed 0.19.8", "use --zero 1 or more")
        if plan.workload.precision == "fp16" and s.zero_stage == 0:
            # engine.py, backward(), scales the loss for ZeRO only; fp16/unfused_optimizer.py, step(), divides by it
            problems.add(
                "fp16 at ZeRO stage 0: DeepSpeed 0.19.8 divides gradients by a loss scale that it has not multiplied"
                " the loss by, so that they vanish and are never clipped",
                "use --zero 1 or more, or --framework ddp",
            )


def _precision(plan: Plan) -> Config:
    precision, sums = plan.workload.precision, plan.workload.gradient_accumulation_dtype
    values: Config = {}
    if precision == "bf16":
        values["bf16"] = {"enabled": True}
    elif precision == "fp16":
        values["fp16"] = {
            "enabled": True,
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        }
    if sums != "default" and precision != "fp32":
        values["data_types"] = {"grad_accum_dtype": sums}
    return values


def _is_bf16_optimizer(plan: Plan) -> bool:
    """Stage 1 with bf16 parameters and fp32 sums runs another optimizer, without buckets (engine.py 0.19.8)."""
    s, work = plan.strategy, plan.workload
    sums_in_fp32 = work.precision == "bf16" and work.gradient_accumulation_dtype == "fp32"
    return s.zero_stage == 1 and sums_in_fp32 and not s.offload


def _zero(plan: Plan) -> Config:
    s, hidden = plan.strategy, plan.model.hidden_size
    zero: Config = {"stage": s.zero_stage}
    if s.zero_stage == 0 or _is_bf16_optimizer(plan):
        return zero
    zero |= {
        "overlap_comm": sizes.OVERLAP_COMM,
        "contiguous_gradients": sizes.CONTIGUOUS_GRADIENTS,
        "reduce_bucket_size": sizes.reduce_bucket_elements(hidden),
    }
    if s.zero_stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": sizes.prefetch_bucket_elements(hidden),
            "stage3_param_persistence_threshold": sizes.persistence_threshold_elements(hidden),
            "stage3_max_live_parameters": sizes.MAX_LIVE_PARAMETERS,
            "stage3_max_reuse_distance": sizes.MAX_REUSE_DISTANCE,
            "sub_group_size": sizes.SUB_GROUP_SIZE,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
        if s.hpz > 1:
            zero["zero_hpz_partition_size"] = s.hpz
    if s.offload >= OFFLOADS_OPTIMIZER:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": sizes.PIN_MEMORY}
    if s.offload >= OFFLOADS_PARAMETERS:
        zero["offload_param"] = {"device": "cpu", "pin_memory": sizes.PIN_MEMORY}
    return zero
