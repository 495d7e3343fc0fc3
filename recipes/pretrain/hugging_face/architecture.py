"""A ``config.json`` as settings of megatron-core, and back: what must agree for both to compute the same function."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from recipes.pretrain.config import CoreConfig
from recipes.pretrain.hugging_face.names import FAMILIES
from toolkit.cluster import ClusterSpec
from toolkit.decode import decode_config
from toolkit.emit import megatron_model
from toolkit.errors import Problems, ToolkitError, reason
from toolkit.megatron_shapes import inexpressible
from toolkit.model import ModelSpec
from toolkit.plan import Plan
from toolkit.recipe import Contract
from toolkit.strategy import Strategy
from toolkit.transformers_shapes import llama_like_config
from toolkit.workload import Workload

# settings that change how training goes, not what the weights compute
NOT_FUNCTION = {
    "hidden_dropout",
    "attention_dropout",
    "init_method_std",
    "moe_aux_loss_coeff",
    "moe_grouped_gemm",
    "moe_token_dispatcher_type",
    "moe_router_load_balancing_type",
    "vocab_size",  # padded for the tensor-parallel size
    "max_sequence_length",
}
# constants of Llama 3.1's rotary scaling that megatron-core 0.16.1 has no words for (rotary_pos_embedding.py:91)
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


@dataclass(frozen=True)
class Shape:
    """The part of a plan from which the emitters make a model's settings."""

    model: ModelSpec
    workload: Workload
    strategy: Strategy
    cluster: ClusterSpec
    contract: Contract = Contract()  # how experts are balanced is no part of what the weights compute


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a folder; raises ToolkitError for a folder without one."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ToolkitError(f"cannot read {path}: {reason(error)}", remedy="give a Hugging Face model folder") from error
    if not isinstance(config, dict):
        raise ToolkitError(f"{path} is not a JSON object", remedy="give a Hugging Face model folder")
    return config


def spec_of(config: dict[str, Any], name: str) -> ModelSpec:
    """The shape; raises ToolkitError for what the names of this package or megatron-core's GPT do not cover."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ToolkitError(
            f"{name}: model_type {family!r} has no mapping to megatron-core here",
            remedy=f"mapped: {', '.join(FAMILIES)}",
        )
    with Problems() as problems:
        _rope(problems, config, name)
        if "quantization_config" in config:
            problems.add(f"{name} is quantised", "give the weights in F32, BF16 or F16")
        if family in ("qwen2_moe", "qwen3_moe") and not _norms_gates(config) and config.get("num_experts_per_tok") == 1:
            problems.add(f"{name}: one expert per token with norm_topk_prob false", "no such model can be built here")
    spec = decode_config(config, name)
    if words := inexpressible(spec):
        raise ToolkitError(
            f"{name} has {', '.join(words)}: megatron-core's GPT cannot be given it",
            remedy="train this model with recipes.finetune.train",
        )
    return spec


def sections(
    config: dict[str, Any], spec: ModelSpec, sequence_length: int, layout: Strategy, cluster: ClusterSpec
) -> dict[str, Any]:
    """``transformer`` and ``model`` of a megatron file for this checkpoint."""
    shape = Shape(spec, Workload(sequence_length=sequence_length), layout, cluster)
    made: Any = shape  # the emitters take a plan, of which they read these parts
    transformer = megatron_model.shape(made) | megatron_model.experts(made) | megatron_model.uneven(made)
    if spec.is_moe:
        transformer["moe_router_pre_softmax"] = not _norms_gates(config)
    return {"transformer": transformer, "model": megatron_model.gpt(made)}


def check(core: CoreConfig, plan: Plan, config: dict[str, Any], name: str) -> None:
    """Raise ToolkitError where the megatron file's model would not compute what the checkpoint's does."""
    spec = spec_of(config, name)
    wanted = sections(config, spec, core.training.sequence_length, plan.strategy, plan.cluster)
    no_matter = NOT_FUNCTION | ({"ffn_hidden_size"} if set(spec.layer_mlps) == {"E"} else set())  # no dense layer
    with Problems() as problems:
        if plan.model.vocab_size != spec.vocab_size:
            problems.add(
                f"{name} has {spec.vocab_size} tokens, the plan's model {plan.model.vocab_size}",
                "plan again with --model set to this checkpoint",
            )
        for section, settings in wanted.items():
            for key, value in settings.items():
                found = getattr(core, section).get(key)
                if key not in no_matter and found != value and (found or value):
                    problems.add(
                        f"{section}.{key} is {found!r} in the megatron file, {name} needs {value!r}",
                        "plan again with --model set to this checkpoint, or write this value into the megatron file",
                    )


def config_of(spec: ModelSpec, sequence_length: int) -> dict[str, Any]:
    """A ``config.json`` for a model that was planned from a shape; raises ToolkitError for one that has none."""
    family = spec.model_type
    if family not in FAMILIES:
        raise ToolkitError(
            f"{spec.name} is a {family}, which has no mapping to a Hugging Face model here",
            remedy=f"mapped: {', '.join(FAMILIES)}",
        )
    if not spec.is_moe:
        keywords = llama_like_config(spec, sequence_length)
    else:
        if set(spec.layer_mlps) != {"E"} or spec.shared_expert_intermediate_size or spec.router_bias:
            raise ToolkitError(
                f"{spec.name} has dense layers, shared experts or a bias in its router: no config.json is made for it",
                remedy="give the contract's model as a folder with config.json",
            )
        dense = {"mixtral": "mistral", "qwen3_moe": "qwen3"}.get(family)
        if dense is None:
            raise ToolkitError(f"a {family} has no experts, {spec.name} has {spec.num_experts}")
        trunk = msgspec.structs.replace(spec, model_type=dense, num_experts=0, num_experts_per_tok=0, mlps="")
        keywords = llama_like_config(trunk, sequence_length)
        keywords["num_experts_per_tok"] = spec.num_experts_per_tok
        keywords["router_aux_loss_coef"] = spec.router_aux_loss_coef or megatron_model.AUXILIARY_LOSS
        if family == "mixtral":
            keywords |= {"num_local_experts": spec.num_experts, "intermediate_size": spec.moe_intermediate_size}
        else:
            keywords |= {"num_experts": spec.num_experts, "moe_intermediate_size": spec.moe_intermediate_size}
            keywords["norm_topk_prob"] = not megatron_model.pre_softmax(spec)
    if spec.initializer_range:
        keywords["initializer_range"] = spec.initializer_range
    return {"model_type": family, "architectures": [CLASSES[family]]} | keywords


def _norms_gates(config: dict[str, Any]) -> bool:
    """Whether the chosen experts' weights add up to 1: always in Mixtral, a switch (off by default) in Qwen-MoE."""
    return config.get("model_type") == "mixtral" or bool(config.get("norm_topk_prob", False))


def _rope(problems: Problems, config: dict[str, Any], name: str) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        problems.add(f"{name}: rope_parameters is {rope!r}", "it must be an object")
        return
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        problems.add(f"{name}: rotary positions of type {kind!r}", "megatron-core's GPT has default and llama3")
    if kind == "llama3":
        for key, value in LLAMA3.items():
            if rope.get(key) != value:
                problems.add(f"{name}: {key} of the rotary scaling is {rope.get(key)!r}", f"megatron-core has {value}")
