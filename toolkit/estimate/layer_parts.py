"""Parameters of one kind of layer by part: what tensor parallelism divides, and what every rank holds whole."""

from __future__ import annotations

from toolkit.estimate import layer_parameters as leaf
from toolkit.model import ModelSpec


def layer_parts(model: ModelSpec, mixer: str, mlp: str) -> dict[str, tuple[int, int]]:
    """Parts of one kind of layer: name -> (divided by tp, whole on every rank)."""
    parts: dict[str, tuple[int, int]] = {}
    if mixer in "AB":
        parts["attention"] = _attention(model)
    if mixer in "MB":
        parts["state_space"] = _state_space(model)
    if mixer == "L":
        parts["linear_attention"] = (
            model.linear_attention_parameters
            or leaf.delta_rule_sharded(
                model.hidden_size,
                model.linear_num_key_heads,
                model.linear_num_value_heads,
                model.linear_key_head_dim,
                model.linear_value_head_dim,
                model.conv_kernel,
            ),
            0,
        )
    if mixer == "C":
        convolution = leaf.short_convolution_sharded(model.hidden_size, model.conv_kernel, model.mamba_conv_bias)
        parts["short_convolution"] = (convolution, 0)
    if mlp == "D":
        parts["mlp"] = (
            leaf.mlp_sharded(model.hidden_size, model.intermediate_size, model.gated_mlp, model.mlp_bias),
            leaf.mlp_replicated(model.hidden_size, model.mlp_bias),
        )
    if mlp == "E":
        parts |= _expert_parts(model)
    parts["norms"] = (0, leaf.norms(model.norms_per_layer, model.hidden_size, model.norm_bias))
    if model.other_layer_parameters:
        parts["other_layer_parameters"] = (0, model.other_layer_parameters)
    return parts


def _attention(model: ModelSpec) -> tuple[int, int]:
    if model.is_mla:
        sharded = leaf.latent_attention_sharded(
            model.hidden_size,
            model.num_attention_heads,
            model.q_lora_rank,
            model.kv_lora_rank,
            model.qk_nope_head_dim,
            model.qk_rope_head_dim,
            model.v_head_dim,
        )
        replicated = leaf.latent_attention_replicated(
            model.hidden_size, model.q_lora_rank, model.kv_lora_rank, model.qk_rope_head_dim, model.attention_bias
        )
        return sharded, replicated
    wide = {"none": 0, "head": 1, "full": model.num_attention_heads}[model.qk_norm]
    wide_key = {"none": 0, "head": 1, "full": model.num_key_value_heads}[model.qk_norm]
    sharded = leaf.attention_sharded(
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
        model.attention_bias,
        model.attention_output_gate,
        model.attention_sinks,
    )
    replicated = leaf.attention_replicated(
        model.hidden_size,
        model.attention_output_bias,
        wide * model.head_dim,
        wide_key * model.head_dim,
        model.qk_norm_bias,
    )
    return sharded, replicated


def _state_space(model: ModelSpec) -> tuple[int, int]:
    if model.mamba_num_heads:
        sharded = leaf.mamba2_sharded(
            model.hidden_size,
            model.mamba_intermediate_size,
            model.state_size,
            model.conv_kernel,
            model.mamba_groups,
            model.mamba_num_heads,
            model.mamba_conv_bias,
            model.mamba_proj_bias,
            model.mamba_gated_norm,
        )
        return sharded, 0
    sharded = leaf.mamba_sharded(
        model.hidden_size,
        model.mamba_intermediate_size,
        model.state_size,
        model.conv_kernel,
        model.time_step_rank,
        model.mamba_conv_bias,
        model.mamba_proj_bias,
    )
    return sharded, leaf.mamba_replicated(model.state_size, model.time_step_rank, model.mamba_inner_norms)


def _expert_parts(model: ModelSpec) -> dict[str, tuple[int, int]]:
    h, gated = model.hidden_size, model.gated_mlp
    shared = leaf.mlp_sharded(h, model.shared_expert_intermediate_size, gated, model.expert_bias)
    return {
        "router": (0, leaf.router(h, model.num_experts, model.router_bias, model.shared_expert_gate)),
        "shared_experts": (shared, 0),
        "routed_experts": (
            leaf.experts(model.num_experts, h, model.moe_intermediate_size, gated, model.expert_bias),
            0,
        ),
    }
