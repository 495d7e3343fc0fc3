"""What one token costs in the average layer of a model: plain numbers, computed once, before any strategy.

Everything a strategy scales (tokens per micro batch, degrees) is left to ``communication`` and ``step``; here
stands what depends on the model and the workload alone. A *whole* quantity is the same on every tensor-parallel
rank, a *sharded* one is divided by tp. Layers of different kinds are averaged: a pipeline stage is taken as
``layers / pp`` average layers. Left out: which stage holds the leading dense layers of a sparse model.
"""

from __future__ import annotations

import msgspec

from toolkit.estimate.flop import (
    Matrix,
    adapter_parameters,
    attention_dims,
    attention_layers,
    attention_per_token,
    matrices,
)
from toolkit.estimate.parameters import count_parameters
from toolkit.estimate.precision import value_bytes
from toolkit.estimate.scan import scan
from toolkit.model import ModelSpec
from toolkit.workload import Workload

NO_ROTARY = ("mpt", "bloom")  # families with linear biases of attention (ALiBi) instead
COMPOSED = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh_python")  # activations of several operators in transformers


CLAMPED = ("gpt_oss",)  # families whose swiglu has limits


class LayerWork(msgspec.Struct, frozen=True, kw_only=True):
    """Per average layer. Widths are elements per token that enter and leave matrix products."""

    layers: int
    hidden: float
    sharded_weights: float
    whole_weights: float
    expert_weights: float  # of one expert
    sharded_inputs: float
    sharded_outputs: float
    whole_inputs: float
    whole_outputs: float
    expert_sharded_inputs: float  # per token and chosen expert
    expert_sharded_outputs: float
    expert_whole_inputs: float
    expert_whole_outputs: float
    kernels: float
    experts: float
    experts_per_token: float
    dense_fraction: float  # of layers whose MLP is dense
    expert_fraction: float
    tensor_blocks: float  # mixers, dense MLPs and shared experts: what tensor parallelism ends with a collective
    attention_flop: float  # executed, forward, per token
    score_elements: float  # eager attention: elements of the score matrix per token
    query_width: float  # queries and what attention makes of them
    key_value_width: float
    rotary_width: float  # 0 where positions are learned, or biases of attention
    dense_activation_width: float
    expert_activation_width: float  # per chosen expert
    expert_clamped_width: float  # per chosen expert, where the activation's inputs are clamped
    expert_bias_width: float  # per chosen expert: values that get a bias after the experts' last product
    scan_flop: float  # chunked state-space scans, forward, per token
    scan_bytes: float
    residuals: float  # additions to the residual stream
    norms: float
    head_norm_width: float  # normed queries and keys
    native_norm: float  # 1 where PyTorch has one kernel for it: LayerNorm
    composed_activation: float  # 1 where an eager activation is made of several operators
    gated: float
    head_weights: float
    vocabulary: float
    # parameters per average layer and beside the layers, as gradients and gathers see them
    sharded_parameters: float
    replicated_parameters: float
    expert_parameters: float
    embedding_parameters: float
    head_parameters: float
    other_parameters: float
    total_parameters: float
    trained_fraction: float  # 1 unless adapters alone are trained


def layer_work(model: ModelSpec, workload: Workload) -> LayerWork:
    """The average layer of a model under a workload."""
    count = float(model.num_hidden_layers)
    parameters = count_parameters(model)
    table = matrices(model)
    dense = [m for m in table[:-1] if not m.cut.startswith("expert")]
    routed = [m for m in table[:-1] if m.cut.startswith("expert")]
    cut = [m for m in dense if m.cut != "whole"]
    windowed, full = attention_layers(model)
    attention = float(windowed + full)
    executed = workload.attention == "flash"
    key_dim, value_dim = attention_dims(model)
    key_values = 2.0 * model.num_key_value_heads * model.head_dim
    if model.is_mla:
        key_values = float(model.num_attention_heads * (key_dim + model.v_head_dim))
    mlps = model.layer_mlps
    scans = scan(model, value_bytes(workload))
    rotary = attention / count * (model.num_attention_heads + model.num_key_value_heads) * float(key_dim)
    layers = parameters.layers
    return LayerWork(
        layers=model.num_hidden_layers,
        hidden=float(model.hidden_size),
        sharded_weights=sum(m.elements * m.layers for m in cut) / count,
        whole_weights=sum(m.elements * m.layers for m in dense if m.cut == "whole") / count,
        expert_weights=sum(m.elements * m.layers for m in routed) / count,
        sharded_inputs=_width(dense, "row", "inputs") / count,
        sharded_outputs=_width(dense, "column", "outputs") / count,
        whole_inputs=(_width(dense, "column", "inputs") + _width(dense, "whole", "inputs")) / count,
        whole_outputs=(_width(dense, "row", "outputs") + _width(dense, "whole", "outputs")) / count,
        expert_sharded_inputs=_width(routed, "expert_row", "inputs") / count,
        expert_sharded_outputs=_width(routed, "expert_column", "outputs") / count,
        expert_whole_inputs=_width(routed, "expert_column", "inputs") / count,
        expert_whole_outputs=_width(routed, "expert_row", "outputs") / count,
        kernels=sum(m.layers for m in table[:-1]) / count,
        experts=float(model.num_experts),
        experts_per_token=float(model.num_experts_per_tok),
        dense_fraction=mlps.count("D") / count,
        expert_fraction=mlps.count("E") / count,
        tensor_blocks=(
            sum(mixer != "-" for mixer in model.layer_mixers)
            + mlps.count("D")
            + mlps.count("E") * (model.shared_expert_intermediate_size > 0)
        )
        / count,
        attention_flop=attention_per_token(model, workload.sequence_length, executed) / count,
        score_elements=attention / count * model.num_attention_heads * float(workload.sequence_length),
        query_width=attention / count * model.num_attention_heads * float(key_dim + value_dim),
        key_value_width=attention / count * key_values,
        rotary_width=0.0 if model.learned_positions or model.model_type in NO_ROTARY else rotary,
        dense_activation_width=(
            mlps.count("D") * model.intermediate_size + mlps.count("E") * model.shared_expert_intermediate_size
        )
        / count,
        expert_clamped_width=CLAMPED.count(model.model_type) * mlps.count("E") / count * model.moe_intermediate_size,
        expert_bias_width=model.expert_bias * mlps.count("E") / count * model.hidden_size,
        expert_activation_width=mlps.count("E") / count * model.moe_intermediate_size,
        scan_flop=scans.flop,
        scan_bytes=scans.moved,
        residuals=sum((mixer != "-") + (mlp != "-") for mixer, mlp in zip(model.layer_mixers, mlps, strict=True))
        / count,
        norms=float(model.norms_per_layer),
        head_norm_width=0.0 if model.qk_norm == "none" else rotary,
        native_norm=1.0 if model.norm_bias or model.unbiased_layer_norm else 0.0,
        composed_activation=1.0 if model.hidden_act in COMPOSED else 0.0,
        gated=1.0 if model.gated_mlp else 0.0,
        head_weights=table[-1].elements,
        vocabulary=float(model.vocab_size),
        sharded_parameters=sum(layer.sharded for layer in layers) / count,
        replicated_parameters=sum(layer.replicated for layer in layers) / count,
        expert_parameters=sum(layer.routed_experts for layer in layers) / count,
        embedding_parameters=float(parameters.embedding + parameters.positions),
        head_parameters=float(parameters.head),
        other_parameters=float(sum(parameters.other.values()) + parameters.final_norm),
        total_parameters=float(parameters.total),
        trained_fraction=1.0 if workload.method == "full" else adapter_parameters(model, workload) / parameters.total,
    )


def _width(table: list[Matrix], cut: str, side: str) -> float:
    """Elements per token on one side of all matrices of a cut, over all layers."""
    return float(sum(getattr(m, side) * m.layers for m in table if m.cut == cut))
