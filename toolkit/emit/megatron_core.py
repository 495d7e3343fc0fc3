"""``megatron_core.json``: keywords of megatron-core 0.16.1's own classes, for the pretraining program."""

from __future__ import annotations

import math
from typing import Any

from toolkit.emit.refusals import require_layout, require_megatron
from toolkit.errors import Problems
from toolkit.megatron_shapes import ACTIVATIONS, activation
from toolkit.model import ModelSpec
from toolkit.pipeline_split import BOTH_ENDS, ENDS, HEAD, pipeline_split
from toolkit.plan import Plan

VERSION = "0.16.1"
VOCABULARY_MULTIPLE = 128
SELECTIVE_MODULES = ("core_attn",)
# what Mixtral and Qwen MoE train with when config.json says nothing (transformers 5.24.0 configuration classes)
AUXILIARY_LOSS = 0.001
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
        "transformer": _shape(plan)
        | _sizes(plan)
        | _experts(plan)
        | _latent_attention(plan.model)
        | _execution(plan)
        | uneven(plan),
        "model": _model(plan),
        "parallel": _sizes(plan, "parallel"),
        "ddp": _ddp(plan),
        "optimizer": _optimizer(plan),
        "training": {
            "micro_batch_size": plan.strategy.micro_batch_size,
            "global_batch_size": plan.contract.global_batch_size,
            "sequence_length": plan.contract.sequence_length,
            "train_steps": train_steps(plan),
            "lr_warmup_steps": plan.contract.warmup_steps,
            "lr_decay_style": plan.contract.schedule,
            "seed": plan.contract.seed,
        },
    }


def padded_vocabulary(vocab_size: int, tp: int) -> int:
    """``ceil(V / (128 tp)) 128 tp``: rows of the embedding table, as Megatron-LM pads it."""
    multiple = VOCABULARY_MULTIPLE * tp
    return -(-vocab_size // multiple) * multiple


def train_steps(plan: Plan) -> int:
    """Optimizer steps of the contract, from its tokens where it gives no steps; 0 when only epochs are known."""
    contract = plan.contract
    if contract.total_steps:
        return contract.total_steps
    return math.ceil(contract.total_tokens / (1.0 * contract.global_batch_size * contract.sequence_length))


def expert_layers(model: ModelSpec) -> int | list[int]:
    """``moe_layer_freq``: 1 when every layer routes, otherwise one 0 or 1 per layer."""
    layers = [int(letter == "E") for letter in model.layer_mlps]
    return 1 if all(layers) else layers


def window(plan: Plan) -> tuple[int, int] | None:
    """Sliding window to the left, where it is shorter than the sequence and so has an effect."""
    size = plan.model.sliding_window
    return (size, 0) if 0 < size < plan.workload.sequence_length else None


def positions(plan: Plan) -> int:
    """Rows of the position table, or the longest sequence that rotary positions must serve."""
    model = plan.model
    return model.learned_positions or max(model.max_position_embeddings, plan.workload.sequence_length)


def on_cpu(plan: Plan) -> bool:
    """Whether the cluster has no GPUs."""
    return plan.cluster.accelerator.architecture == "cpu"


def _shape(plan: Plan) -> dict[str, Any]:
    model = plan.model
    dropout = 0.1 if plan.workload.dropout else 0.0
    shape: dict[str, Any] = {
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.intermediate_size or model.moe_intermediate_size,
        "num_attention_heads": model.num_attention_heads,
        "gated_linear_unit": model.gated_mlp,
        "activation_func": ACTIVATIONS[activation(model)],
        "add_bias_linear": model.mlp_bias,
        "add_qkv_bias": model.attention_bias,
        "normalization": "LayerNorm" if model.norm_bias else "RMSNorm",
        # latent attention norms its compressed queries and keys under the same switch
        "qk_layernorm": model.qk_norm != "none" or model.is_mla,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
    }
    if not model.is_mla:
        shape["num_query_groups"] = model.num_key_value_heads
        shape["kv_channels"] = model.head_dim
    if model.norm_epsilon:
        shape["layernorm_epsilon"] = model.norm_epsilon
    if model.initializer_range:
        shape["init_method_std"] = model.initializer_range
    if window(plan):
        shape["window_size"] = list(window(plan) or ())
    return shape


def _latent_attention(model: ModelSpec) -> dict[str, Any]:
    if not model.is_mla:
        return {}
    return {
        "multi_latent_attention": True,
        "q_lora_rank": model.q_lora_rank or None,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_head_dim": model.qk_nope_head_dim,
        "qk_pos_emb_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
        "rope_type": "rope",
        "rotary_base": model.rope_theta or 10000,
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
            sizes["cp_comm_type"] = "p2p"
    return sizes


def uneven(plan: Plan) -> dict[str, Any]:
    """How layers that do not divide evenly go onto the stages; empty where they do."""
    s = plan.strategy
    split = pipeline_split(plan.model.num_hidden_layers, s.pp, s.virtual_pipeline_stages)
    if split.way == BOTH_ENDS:
        return {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    if split.way == HEAD:
        return {"account_for_loss_in_pipeline_split": True}
    if split.way == ENDS:
        return {
            "num_layers_in_first_pipeline_stage": split.first,
            "num_layers_in_last_pipeline_stage": split.last,
        }
    return {}


def _experts(plan: Plan) -> dict[str, Any]:
    model = plan.model
    if not model.is_moe:
        return {}
    experts: dict[str, Any] = {
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.num_experts_per_tok,
        "moe_ffn_hidden_size": model.moe_intermediate_size,
        "moe_layer_freq": expert_layers(model),
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": model.router_aux_loss_coef or AUXILIARY_LOSS,
        "moe_router_pre_softmax": pre_softmax(model),
        "moe_grouped_gemm": grouped_gemm(plan),
    }
    if model.router_bias:
        experts |= {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    if model.shared_expert_intermediate_size:
        experts["moe_shared_expert_intermediate_size"] = model.shared_expert_intermediate_size
        if model.shared_expert_gate:
            experts["moe_shared_expert_gate"] = True
    return experts


def pre_softmax(model: ModelSpec) -> bool:
    """Softmax before the choice: with one expert per token the weight would be 1 whatever the router says."""
    return model.num_experts_per_tok == 1 and not model.router_bias


def grouped_gemm(plan: Plan) -> bool:
    """All experts in one kernel: needs an NVIDIA GPU of compute capability 8 or more."""
    accelerator = plan.cluster.accelerator
    return accelerator.vendor == "NVIDIA" and accelerator.architecture not in ("cpu", "volta", "turing")


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
        execution |= {"recompute_granularity": "selective", "recompute_modules": list(SELECTIVE_MODULES)}
    if s.recompute == 2:
        execution |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if not on_cpu(plan):
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


def _model(plan: Plan) -> dict[str, Any]:
    model = plan.model
    values: dict[str, Any] = {
        "vocab_size": padded_vocabulary(model.vocab_size, plan.strategy.tp),
        "max_sequence_length": positions(plan),
        "share_embeddings_and_output_weights": model.tie_word_embeddings,
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
    }
    if not model.learned_positions:
        values["rotary_percent"] = model.partial_rotary_factor
        values["rotary_base"] = int(model.rope_theta or 10000)
        if model.rope_scaling_factor:
            values |= {"rope_scaling": True, "rope_scaling_factor": model.rope_scaling_factor}
    return values


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
    contract, ddp = plan.contract, _ddp(plan)
    dtype = DTYPES[plan.workload.precision]
    values: dict[str, Any] = {
        "optimizer": "sgd" if plan.workload.optimizer == "sgd" else "adam",
        "lr": contract.learning_rate,
        "min_lr": contract.min_learning_rate,
        "weight_decay": contract.weight_decay,
        "adam_beta1": contract.adam_beta1,
        "adam_beta2": contract.adam_beta2,
        "adam_eps": contract.adam_epsilon,
        "clip_grad": contract.gradient_clipping,
        "params_dtype": dtype,
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "use_distributed_optimizer": ddp["use_distributed_optimizer"],
        "overlap_param_gather": ddp["overlap_param_gather"],
    }
    if dtype == "fp16":
        values |= {"initial_loss_scale": 65536.0, "min_loss_scale": 1.0, "loss_scale_window": 1000.0, "hysteresis": 2}
    return values
