"""``megatron_core.json``: keywords of megatron-core 0.16.1's own classes, for the pretraining program."""

from __future__ import annotations

from typing import Any

from toolkit.context_parallel import exchanging_ranks
from toolkit.emit.megatron_model import experts, gpt, latent_attention, shape, uneven
from toolkit.emit.refusals import require_layout, require_megatron
from toolkit.errors import Problems
from toolkit.plan import Plan
from toolkit.recipe import Contract, planned_steps, warmup_steps

VERSION = "0.16.1"
DTYPES = {"bf16": "bf16", "fp8": "bf16", "fp16": "fp16", "fp32": "fp32"}


def core_config(plan: Plan) -> dict[str, Any]:
    """All sections; every key is a keyword of the class that the section is for.

    ``transformer`` TransformerConfig (MLATransformerConfig for multi-head latent attention), ``model``
    GPTModel, ``parallel`` initialize_model_parallel, ``ddp`` DistributedDataParallelConfig, ``optimizer``
    OptimizerConfig, ``training`` the program's loop. Dtypes and ``activation_func`` are names, since
    JSON has no others. Raises ToolkitError for a plan that these classes cannot express.
    """
    with Problems() as problems:
        require_layout(problems, plan)
        require_megatron(problems, plan)
    return {
        "megatron_core": VERSION,
        "transformer": shape(plan)
        | _sizes(plan)
        | experts(plan)
        | latent_attention(plan.model)
        | _execution(plan)
        | uneven(plan),
        "model": gpt(plan),
        "parallel": _sizes(plan, "parallel"),
        "ddp": _ddp(plan),
        "optimizer": _optimizer(plan),
        "training": {"micro_batch_size": plan.strategy.micro_batch_size} | of_contract(plan.contract)["training"],
    }


def of_contract(contract: Contract) -> dict[str, dict[str, Any]]:
    """Section and key: what the contract alone fixes, on whatever layout."""
    steps = planned_steps(contract)
    return {
        "optimizer": {
            "lr": contract.learning_rate,
            "min_lr": contract.min_learning_rate,
            "weight_decay": contract.weight_decay,
            "adam_beta1": contract.adam_beta1,
            "adam_beta2": contract.adam_beta2,
            "adam_eps": contract.adam_epsilon,
            "clip_grad": contract.gradient_clipping,
        },
        "training": {
            "global_batch_size": contract.global_batch_size,
            "sequence_length": contract.sequence_length,
            "train_steps": steps,
            "lr_warmup_steps": warmup_steps(contract, steps),
            "lr_decay_style": contract.schedule,
            "seed": contract.seed,
        },
    }


def _sizes(plan: Plan, section: str = "transformer") -> dict[str, Any]:
    s = plan.strategy
    sizes: dict[str, Any] = {
        "tensor_model_parallel_size": s.tp,
        "pipeline_model_parallel_size": s.pp,
        "virtual_pipeline_model_parallel_size": s.virtual_pipeline_stages if s.virtual_pipeline_stages > 1 else None,
        "context_parallel_size": s.cp,
        "expert_model_parallel_size": s.ep,
        # the library takes tp for a missing value, so it is always given
        "expert_tensor_parallel_size": s.etp if plan.model.is_moe else s.tp,
    }
    if section == "transformer":
        sizes["sequence_parallel"] = bool(s.sequence_parallel)
        if s.cp > 1:
            sizes["cp_comm_type"] = s.cp_method
    if s.cp_method == "a2a+p2p":
        inner = exchanging_ranks(plan.model, plan.cluster.fast_domain, s)
        sizes["hierarchical_context_parallel_sizes"] = [inner, s.cp // inner]
    return sizes


def _execution(plan: Plan) -> dict[str, Any]:
    s, precision = plan.strategy, plan.workload.precision
    dtype = DTYPES[precision]
    interleaved = s.virtual_pipeline_stages > 1
    execution: dict[str, Any] = {
        "params_dtype": dtype,
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "cross_entropy_loss_fusion": plan.workload.fused_cross_entropy,
    }
    if precision == "fp8":
        execution["fp8"] = "hybrid"
    if s.pp > 1:
        # two interleaved stages with batched sends train on wrong gradients, without any error
        execution |= {
            "pipeline_dtype": dtype,
            "overlap_p2p_comm": interleaved,
            "batch_p2p_comm": not interleaved,
            "deallocate_pipeline_outputs": True,
        }
    if s.recompute == 1:
        execution |= {
            "recompute_granularity": "selective",
            "recompute_modules": plan.workload.recompute_modules.split("+"),
        }
    if s.recompute == 2:
        # uniform: every layer is a unit of its own; block: the first so many layers of each virtual stage
        layers = s.recompute_layers // s.virtual_pipeline_stages
        method = "block" if layers else "uniform"
        execution |= {
            "recompute_granularity": "full",
            "recompute_method": method,
            "recompute_num_layers": layers or 1,
        }
    if not plan.cluster.accelerator.is_cpu:
        model = plan.model
        execution |= {
            "bias_activation_fusion": model.gated_mlp,
            "bias_dropout_fusion": True,
            "apply_rope_fusion": not model.learned_positions and not model.is_mla,
            "gradient_accumulation_fusion": True,
            "masked_softmax_fusion": True,
            "persist_layer_norm": True,
        }
    return execution


def _ddp(plan: Plan) -> dict[str, Any]:
    s = plan.strategy
    sharded, shared = s.zero_stage > 0, s.dp * s.cp > 1
    return {
        "grad_reduce_in_fp32": plan.workload.gradient_accumulation_dtype != "bf16",
        "overlap_grad_reduce": shared,
        "use_distributed_optimizer": sharded,
        "overlap_param_gather": sharded and shared,
        "check_for_nan_in_grad": True,
    }


def _optimizer(plan: Plan) -> dict[str, Any]:
    ddp, dtype = _ddp(plan), DTYPES[plan.workload.precision]
    values: dict[str, Any] = {"optimizer": "sgd" if plan.workload.optimizer == "sgd" else "adam"}
    values |= of_contract(plan.contract)["optimizer"] | {
        "params_dtype": dtype,
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "use_distributed_optimizer": ddp["use_distributed_optimizer"],
        "overlap_param_gather": ddp["overlap_param_gather"],
    }
    if dtype == "fp16":
        values |= {"initial_loss_scale": 65536.0, "min_loss_scale": 1.0, "loss_scale_window": 1000.0, "hysteresis": 2}
    return values
