"""The model in keywords of megatron-core 0.16.1: shape, experts, latent attention, positions, layers per stage."""

from __future__ import annotations

from typing import Any

from toolkit.megatron_shapes import ACTIVATIONS, activation, padded_vocabulary
from toolkit.model import ModelSpec
from toolkit.pipeline_split import BOTH_ENDS, ENDS, HEAD, pipeline_split
from toolkit.plan import Plan

# what Mixtral and Qwen MoE train with when config.json says nothing (transformers 5.24.0 configuration classes)
AUXILIARY_LOSS = 0.001
BALANCE = {"micro_batch": "aux_loss", "sequence": "seq_aux_loss"}  # moe_router_load_balancing_type of a contract's word


def shape(plan: Plan) -> dict[str, Any]:
    """TransformerConfig: widths, heads, biases, norms, activation, dropout."""
    model = plan.model
    dropout = 0.1 if plan.workload.dropout else 0.0
    values: dict[str, Any] = {
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
        values["num_query_groups"] = model.num_key_value_heads
        values["kv_channels"] = model.head_dim
    if model.norm_epsilon:
        values["layernorm_epsilon"] = model.norm_epsilon
    if model.initializer_range:
        values["init_method_std"] = model.initializer_range
    if window(plan):
        values["window_size"] = list(window(plan) or ())
    return values


def latent_attention(model: ModelSpec) -> dict[str, Any]:
    """MLATransformerConfig: ranks and head sizes; empty for ordinary attention."""
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


def experts(plan: Plan) -> dict[str, Any]:
    """TransformerConfig: routing and expert widths; empty for a dense model."""
    model = plan.model
    if not model.is_moe:
        return {}
    values: dict[str, Any] = {
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.num_experts_per_tok,
        "moe_ffn_hidden_size": model.moe_intermediate_size,
        "moe_layer_freq": expert_layers(model),
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": BALANCE[plan.contract.expert_balance],
        "moe_aux_loss_coeff": model.router_aux_loss_coef or AUXILIARY_LOSS,
        "moe_router_pre_softmax": pre_softmax(model),
        "moe_grouped_gemm": grouped_gemm(plan),
    }
    if model.router_bias:
        values |= {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    if model.shared_expert_intermediate_size:
        values["moe_shared_expert_intermediate_size"] = model.shared_expert_intermediate_size
        if model.shared_expert_gate:
            values["moe_shared_expert_gate"] = True
    return values


def gpt(plan: Plan) -> dict[str, Any]:
    """GPTModel: padded vocabulary, positions, tied embeddings."""
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


def expert_layers(model: ModelSpec) -> int | list[int]:
    """``moe_layer_freq``: 1 when every layer routes, otherwise one 0 or 1 per layer."""
    layers = [int(letter == "E") for letter in model.layer_mlps]
    return 1 if all(layers) else layers


def pre_softmax(model: ModelSpec) -> bool:
    """Softmax before the choice: with one expert per token the weight would be 1 whatever the router says."""
    return model.num_experts_per_tok == 1 and not model.router_bias


def grouped_gemm(plan: Plan) -> bool:
    """All experts in one kernel: needs an NVIDIA GPU of compute capability 8 or more."""
    accelerator = plan.cluster.accelerator
    return accelerator.vendor == "NVIDIA" and accelerator.architecture not in ("cpu", "volta", "turing")


def window(plan: Plan) -> tuple[int, int] | None:
    """Sliding window to the left, where it is shorter than the sequence and so has an effect.

    ``sliding_window`` of a config.json counts the query's own key, megatron-core's window the keys before it
    (transformer/utils.py:38: a window of 0 would leave the diagonal).
    """
    size = plan.model.sliding_window
    return (size - 1, 0) if 0 < size < plan.workload.sequence_length else None


def positions(plan: Plan) -> int:
    """Rows of the position table, or the longest sequence that rotary positions must serve."""
    model = plan.model
    return model.learned_positions or max(model.max_position_embeddings, plan.workload.sequence_length)
