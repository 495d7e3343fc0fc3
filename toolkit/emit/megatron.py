"""Flags of Megatron-LM's own ``pretrain_gpt.py`` (core_v0.16.1); ``core_config`` is for our pretraining program."""

from __future__ import annotations

from typing import Any

from toolkit.emit.megatron_core import core_config
from toolkit.emit.megatron_model import expert_layers, positions, uneven, window
from toolkit.megatron_shapes import VOCABULARY_MULTIPLE
from toolkit.plan import Plan
from toolkit.recipe import decay_steps, planned_steps, warmup_steps

__all__ = ["arguments", "arguments_text", "core_config"]

TAKE_SEVERAL = ("recompute-modules", "hierarchical-context-parallel-sizes")
Value = str | int | float | bool | None


def arguments(plan: Plan) -> list[str]:
    """Model shape, degrees, batch, precision, optimizer, overlap and recomputation, as argv.

    Data, tokenizer and checkpoint paths are not in a plan and are left to the caller. The flags say the
    same as :func:`core_config`: both are made from one dictionary, so they cannot drift apart. Megatron-LM
    itself needs GPUs; our own program does not. Raises ToolkitError for a plan that the flags cannot
    express. Source of the names: the parser of tag core_v0.16.1.
    """
    config = core_config(plan)
    flags = _model(plan, config) | _degrees(plan, config) | _training(plan, config) | _execution(plan, config)
    argv: list[str] = []
    for flag, value in flags.items():
        if value is None or value is False:
            continue
        argv.append(f"--{flag}")
        if value is not True:
            argv.extend(str(value).split() if flag in TAKE_SEVERAL else [_text(value)])
    return argv


def arguments_text(plan: Plan) -> str:
    """One flag per line with its value: ``pretrain_gpt.py $(cat megatron_args.txt)`` works as it is."""
    lines: list[str] = []
    for word in arguments(plan):
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines) + "\n"


def _text(value: str | int | float) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _model(plan: Plan, config: dict[str, dict[str, Value]]) -> dict[str, Value]:
    model, shape, gpt = plan.model, config["transformer"], config["model"]
    grouped = not model.is_mla and model.num_key_value_heads != model.num_attention_heads
    rotary = gpt["position_embedding_type"] == "rope"
    flags: dict[str, Value] = {
        "num-layers": shape["num_layers"],
        "hidden-size": shape["hidden_size"],
        "ffn-hidden-size": shape["ffn_hidden_size"],
        "num-attention-heads": shape["num_attention_heads"],
        "group-query-attention": grouped,
        "num-query-groups": model.num_key_value_heads if grouped else None,
        "kv-channels": shape.get("kv_channels"),
        "seq-length": plan.workload.sequence_length,
        "max-position-embeddings": positions(plan),
        "vocab-size": model.vocab_size,
        "make-vocab-size-divisible-by": VOCABULARY_MULTIPLE,
        "untie-embeddings-and-output-weights": not gpt["share_embeddings_and_output_weights"],
        "position-embedding-type": gpt["position_embedding_type"],
        "rotary-base": gpt.get("rotary_base") if rotary else None,
        "rotary-percent": gpt["rotary_percent"] if rotary and gpt["rotary_percent"] != 1.0 else None,
        "use-rope-scaling": bool(gpt.get("rope_scaling")),
        "rope-scaling-factor": gpt.get("rope_scaling_factor"),
        "swiglu": model.gated_mlp,
        "disable-bias-linear": not shape["add_bias_linear"],
        "add-qkv-bias": shape["add_qkv_bias"] and not shape["add_bias_linear"],
        "normalization": shape["normalization"],
        "norm-epsilon": shape.get("layernorm_epsilon"),
        "qk-layernorm": shape["qk_layernorm"],
        "init-method-std": shape.get("init_method_std"),
        "hidden-dropout": shape["hidden_dropout"],
        "attention-dropout": shape["attention_dropout"],
        "window-size": ",".join(map(str, window(plan) or ())) or None,
    }
    return flags | _latent_attention(plan, shape) | _experts(plan, shape)


def _latent_attention(plan: Plan, shape: dict[str, Value]) -> dict[str, Value]:
    if not plan.model.is_mla:
        return {}
    names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type")
    return {"multi-latent-attention": True} | {name.replace("_", "-"): shape[name] for name in names}


def _experts(plan: Plan, shape: dict[str, Value]) -> dict[str, Value]:
    if not plan.model.is_moe:
        return {}
    layers = expert_layers(plan.model)
    names = (
        "moe_router_topk",
        "moe_ffn_hidden_size",
        "moe_token_dispatcher_type",
        "moe_router_load_balancing_type",
        "moe_aux_loss_coeff",
        "moe_router_pre_softmax",
        "moe_grouped_gemm",
        "moe_router_score_function",
        "moe_router_enable_expert_bias",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_gate",
    )
    flags: dict[str, Value] = {"num-experts": shape["num_moe_experts"]}
    flags |= {name.replace("_", "-"): shape.get(name) for name in names}
    if layers != 1:
        flags["moe-layer-freq"] = str(layers).replace(" ", "")
    return flags


def _degrees(plan: Plan, config: dict[str, dict[str, Value]]) -> dict[str, Value]:
    s, sizes, split = plan.strategy, config["parallel"], uneven(plan)
    counted = plan.model.num_hidden_layers + sum(value is True for value in split.values())
    each = counted // (s.pp * s.virtual_pipeline_stages)
    levels: Any = sizes.get("hierarchical_context_parallel_sizes")
    return {
        "tensor-model-parallel-size": sizes["tensor_model_parallel_size"],
        "sequence-parallel": bool(s.sequence_parallel),
        "pipeline-model-parallel-size": sizes["pipeline_model_parallel_size"],
        "num-layers-per-virtual-pipeline-stage": each if s.virtual_pipeline_stages > 1 else None,
        "account-for-embedding-in-pipeline-split": split.get("account_for_embedding_in_pipeline_split"),
        "account-for-loss-in-pipeline-split": split.get("account_for_loss_in_pipeline_split"),
        "decoder-first-pipeline-num-layers": split.get("num_layers_in_first_pipeline_stage"),
        "decoder-last-pipeline-num-layers": split.get("num_layers_in_last_pipeline_stage"),
        "context-parallel-size": sizes["context_parallel_size"],
        "cp-comm-type": config["transformer"].get("cp_comm_type"),
        "hierarchical-context-parallel-sizes": " ".join(map(str, levels)) if isinstance(levels, list) else None,
        "expert-model-parallel-size": sizes["expert_model_parallel_size"] if plan.model.is_moe else None,
        "expert-tensor-parallel-size": sizes["expert_tensor_parallel_size"] if plan.model.is_moe else None,
    }


def _training(plan: Plan, config: dict[str, dict[str, Value]]) -> dict[str, Value]:
    contract, optimizer, steps = plan.contract, config["optimizer"], planned_steps(plan.contract)
    adam = optimizer["optimizer"] == "adam"
    return {
        "micro-batch-size": plan.strategy.micro_batch_size,
        "global-batch-size": contract.global_batch_size,
        "train-iters": steps or None,
        "lr-decay-iters": steps or None,
        "lr-warmup-iters": warmup_steps(contract, steps),
        "lr-warmup-fraction": contract.warmup_fraction if contract.warmup_fraction and not steps else None,
        "lr-decay-style": "WSD" if contract.schedule == "wsd" else contract.schedule,
        "lr-wsd-decay-style": "linear" if contract.schedule == "wsd" else None,
        "lr-wsd-decay-iters": decay_steps(contract, steps) or None,
        "lr": contract.learning_rate,
        "min-lr": contract.min_learning_rate,
        "optimizer": optimizer["optimizer"],
        "weight-decay": contract.weight_decay,
        "adam-beta1": contract.adam_beta1 if adam else None,
        "adam-beta2": contract.adam_beta2 if adam else None,
        "adam-eps": contract.adam_epsilon if adam else None,
        "clip-grad": contract.gradient_clipping,
        "seed": contract.seed,
    }


def _execution(plan: Plan, config: dict[str, dict[str, Value]]) -> dict[str, Value]:
    shape, ddp = config["transformer"], config["ddp"]
    modules = shape.get("recompute_modules")
    sixteen_bit = bool(shape["bf16"] or shape["fp16"])
    return {
        "bf16": shape["bf16"],
        "fp16": shape["fp16"],
        "fp8-format": shape.get("fp8"),
        "initial-loss-scale": config["optimizer"].get("initial_loss_scale"),
        "accumulate-allreduce-grads-in-fp32": sixteen_bit and ddp["grad_reduce_in_fp32"],
        "grad-reduce-in-bf16": not ddp["grad_reduce_in_fp32"],
        "use-distributed-optimizer": ddp["use_distributed_optimizer"],
        "overlap-grad-reduce": ddp["overlap_grad_reduce"],
        "overlap-param-gather": ddp["overlap_param_gather"],
        "recompute-granularity": shape.get("recompute_granularity"),
        "recompute-method": shape.get("recompute_method"),
        "recompute-num-layers": shape.get("recompute_num_layers"),
        "recompute-modules": " ".join(modules) if isinstance(modules, list) else None,
        "attention-backend": "unfused" if plan.workload.attention == "eager" else None,
        "cross-entropy-loss-fusion": shape["cross_entropy_loss_fusion"],
        "ckpt-format": "torch_dist",
        "dist-ckpt-optim-fully-reshardable": ddp["use_distributed_optimizer"],
    }
