"""The weight matrices of a model, for what needs more than their sum: adapters and the largest tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from toolkit.equation import equation
from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec

TARGETS = ("all-linear", "attention")

# What peft 0.21.2 wraps for all-linear beside the ordinary linear layers, found by asking it for each family
# (tests/estimate/test_adapters.py): of these it adapts the fused experts and the routers, but not the dense MLPs
# and shared experts, whose matrices carry the names that experts had before they were fused ...
_EXPERTS_ADAPTED = frozenset(
    [
        "deepseek_v2",
        "deepseek_v3",
        "dots1",
        "ernie4_5_moe",
        "exaone_moe",
        "flex_olmo",
        "glm4_moe",
        "glm4_moe_lite",
        "hunyuan_v1_moe",
        "mellum",
        "minimax_m2",
        "mixtral",
        "olmoe",
        "qwen3_moe",
        "qwen3_next",
        "sarvam_mla",
        "solar_open",
    ]
)
# ... of these it adapts the routers and whatever is linear ...
_ROUTERS_ADAPTED = frozenset(("dbrx", "llama4", "llama4_text", "phimoe"))
# ... and these it refuses, because a fused Mamba kernel passes over the adapter of out_proj
_REFUSED = frozenset(("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"))
# families with matrices that no field of a ModelSpec describes
_UNLISTED = frozenset(
    ["afmoe", "doge", "deepseek_v32", "glm_moe_dsa", "kimi_linear", "minimax", "recurrent_gemma", "zamba", "zamba2"]
)


class Matrix(NamedTuple):
    """``number`` equal matrices (over all layers) of ``inputs * outputs`` elements and a bias of ``bias``.

    ``group`` is attention, mlp, shared_expert, expert, router or state_space. ``fused`` experts lie in one
    tensor; ``linear`` is false for what Hugging Face holds as a bare parameter, which adapters pass over.
    """

    name: str
    group: str
    inputs: int
    outputs: int
    number: int
    bias: int = 0
    fused: int = 1
    linear: bool = True

    @property
    def elements(self) -> int:
        """Weights of one matrix."""
        return self.inputs * self.outputs


def matrices(model: ModelSpec) -> list[Matrix]:
    """All matrices of the hidden layers in the layout of Hugging Face transformers 5.24."""
    mixers, mlps = model.layer_mixers, model.layer_mlps
    found: list[Matrix] = []
    attention = mixers.count("A") + mixers.count("B")
    state_space = mixers.count("M") + mixers.count("B")
    if attention:
        found += _latent_attention(model, attention) if model.is_mla else _attention(model, attention)
    if state_space:
        found += _state_space(model, state_space)
    if "L" in mixers:
        found += _delta_rule(model, mixers.count("L"))
    if "C" in mixers:
        h = model.hidden_size
        found += [Matrix("in_proj", "state_space", h, 3 * h, mixers.count("C"))]
        found += [Matrix("out_proj", "state_space", h, h, mixers.count("C"))]
    if "D" in mlps:
        found += _mlp("mlp", model, model.intermediate_size, mlps.count("D"), model.mlp_bias)
    if "E" in mlps:
        found += _experts(model, mlps.count("E"))
    return found


def _attention(model: ModelSpec, number: int) -> Iterator[Matrix]:
    h, d = model.hidden_size, model.head_dim
    apart = model.model_type == "afmoe"  # its gate is a matrix of its own
    queries = model.num_attention_heads * d * (1 + (model.attention_output_gate and not apart))
    if apart:
        yield Matrix("gate_proj", "attention_gate", h, queries, number)
    keys = model.num_key_value_heads * d
    widths = (
        {"qkv_proj": queries + 2 * keys} if model.fused_qkv else {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    )
    for name, width in widths.items():
        yield Matrix(name, "attention", h, width, number, model.attention_bias * width)
    yield Matrix("o_proj", "attention", model.num_attention_heads * d, h, number, model.attention_output_bias * h)


def _latent_attention(model: ModelSpec, number: int) -> Iterator[Matrix]:
    h, heads, bias = model.hidden_size, model.num_attention_heads, model.attention_bias
    rank, rope = model.kv_lora_rank, model.qk_rope_head_dim
    queries = heads * (model.qk_nope_head_dim + rope)
    if model.q_lora_rank:
        yield Matrix("q_a_proj", "attention", h, model.q_lora_rank, number, bias * model.q_lora_rank)
        yield Matrix("q_b_proj", "attention", model.q_lora_rank, queries, number)
    else:
        yield Matrix("q_proj", "attention", h, queries, number)
    yield Matrix("kv_a_proj_with_mqa", "attention", h, rank + rope, number, bias * (rank + rope))
    yield Matrix("kv_b_proj", "attention", rank, heads * (model.qk_nope_head_dim + model.v_head_dim), number)
    yield Matrix("o_proj", "attention", heads * model.v_head_dim, h, number, bias * h)


def _state_space(model: ModelSpec, number: int) -> Iterator[Matrix]:
    h, inner, bias = model.hidden_size, model.mamba_intermediate_size, model.mamba_proj_bias
    columns = 2 * inner
    if model.mamba_num_heads:
        columns += 2 * model.mamba_groups * model.state_size + model.mamba_num_heads
    else:
        rank = model.time_step_rank
        yield Matrix("x_proj", "state_space", inner, rank + 2 * model.state_size, number)
        yield Matrix("dt_proj", "state_space", rank, inner, number, inner)
    yield Matrix("in_proj", "state_space", h, columns, number, bias * columns)
    yield Matrix("out_proj", "state_space", inner, h, number, bias * h)


def _delta_rule(model: ModelSpec, number: int) -> Iterator[Matrix]:
    h = model.hidden_size
    keys = model.linear_num_key_heads * model.linear_key_head_dim
    values, scalars = model.linear_num_value_heads * model.linear_value_head_dim, model.linear_num_value_heads
    if model.model_type.startswith("qwen3_next"):
        widths = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * scalars}
    elif model.model_type.startswith("qwen3_5"):
        widths = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": scalars, "in_proj_a": scalars}
    else:
        widths = {"q_proj": keys, "k_proj": keys, "v_proj": values, "g_proj": values, "a_proj": scalars}
        widths["b_proj"] = scalars
    for name, width in widths.items():
        yield Matrix(name, "state_space", h, width, number)
    yield Matrix("out_proj", "state_space", values, h, number)


def _mlp(group: str, model: ModelSpec, width: int, number: int, bias: bool) -> Iterator[Matrix]:
    h = model.hidden_size
    ups = {"gate_up_proj": 2 * width} if model.fused_gate_up else {"gate_proj": width, "up_proj": width}
    for name, columns in (ups if model.gated_mlp else {"up_proj": width}).items():
        yield Matrix(name, group, h, columns, number, bias * columns)
    yield Matrix("down_proj", group, width, h, number, bias * h)


def _experts(model: ModelSpec, number: int) -> Iterator[Matrix]:
    h, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    adapted = model.model_type in _EXPERTS_ADAPTED
    router = adapted or model.model_type in _ROUTERS_ADAPTED
    yield Matrix("router", "router", h, experts, number, model.router_bias * experts, linear=router)
    if model.shared_expert_gate:
        yield Matrix("shared_expert_gate", "router", h, 1, number)
    if model.shared_expert_intermediate_size:
        yield from _mlp("shared_expert", model, model.shared_expert_intermediate_size, number, model.expert_bias)
    columns = (1 + model.gated_mlp) * width
    if model.model_type == "dbrx":  # gate and up lie apart
        columns = width
        yield Matrix("v1", "expert", h, width, number * experts, fused=experts, linear=False)
    for name, inputs, outputs in (("gate_up_proj", h, columns), ("down_proj", width, h)):
        bias = model.expert_bias * outputs
        yield Matrix(name, "expert", inputs, outputs, number * experts, bias, fused=experts, linear=adapted)


@equation("P17", "r*sum(inputs + outputs)")
def adapter_parameters(rank: int, inputs_and_outputs: int) -> int:
    """Low-rank adapters: A is ``r * inputs``, B is ``outputs * r``, no bias. Source: arXiv 2106.09685, section 4.1."""
    return rank * inputs_and_outputs


def lora_parameters(model: ModelSpec, rank: int, targets: str = "all-linear") -> int:
    """Trainable parameters of LoRA adapters of ``rank`` on ``targets``; the base model is frozen.

    ``attention``: query, key, value and output matrices. ``all-linear``: what peft 0.21.2 adapts with transformers
    5.24, which is every linear layer except the head; but of most mixtures the routed experts (gate and up are one
    tensor there and get twice the rank) and the router, and no dense MLP or shared expert. Left out: the vision
    tower and projector.

    Raises ToolkitError for other targets, a rank below 1, families that peft refuses, and families whose matrices
    are not all described by the shape.
    """
    if targets not in TARGETS:
        raise ToolkitError(f"unknown LoRA targets {targets!r}", remedy=f"use one of: {', '.join(TARGETS)}")
    if rank < 1:
        raise ToolkitError(f"LoRA rank is {rank}", remedy="a rank is at least 1; 8 to 64 are usual")
    if targets == "all-linear":
        if model.model_type in _REFUSED:
            raise ToolkitError(
                f"peft does not adapt all linear layers of {model.model_type}: out_proj is part of a fused kernel",
                remedy="train the whole model, or adapt its attention only",
            )
        if model.model_type in _UNLISTED or model.counted_layers:
            raise ToolkitError(
                f"the linear layers of {model.name} ({model.model_type}) are not all known by their shape",
                remedy="adapt its attention only",
            )
    elif model.counted_layers:
        raise ToolkitError(
            f"the attention matrices of {model.name} ({model.model_type}) are not known by their shape",
            remedy="train the whole model, or plan a family that toolkit models lists",
        )
    passed_over = ("mlp", "shared_expert") if model.model_type in _EXPERTS_ADAPTED else ()
    chosen = [
        m
        for m in matrices(model)
        if m.linear and (m.group not in passed_over if targets == "all-linear" else m.group == "attention")
    ]
    sides = 0
    for m in chosen:
        doubled = 2 if m.name == "gate_up_proj" and m.fused > 1 else 1
        sides += m.number * (m.inputs + m.outputs) * doubled
    return adapter_parameters(rank, sides)
