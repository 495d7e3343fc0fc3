"""What the frameworks accept. A constraint is data: mask of the search, validation, and sentence.

``holds`` works on scalars and columns. ``advice`` marks what is legal but pointless or unwise: the
search drops it, a strategy that the user spelled out is only warned about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.cluster import ClusterSpec
from toolkit.errors import Problem
from toolkit.megatron_shapes import inexpressible
from toolkit.model import ModelSpec
from toolkit.search.request import Request
from toolkit.strategy import Strategy
from toolkit.workload import Workload

Predicate = Callable[[ModelSpec, ClusterSpec, Workload, Strategy], Any]
ALL = ("ddp", "deepspeed", "fsdp", "megatron")
DATA_PARALLEL = ("ddp", "deepspeed", "fsdp")


@dataclass(frozen=True)
class Constraint:
    """One rule. ``sentence`` and ``remedy`` are formats over m, c, w, s (model, cluster, workload, strategy)."""

    name: str
    frameworks: tuple[str, ...]
    holds: Predicate
    sentence: str
    remedy: str = ""
    advice: bool = False
    source: str = ""


def _tp_choices(model: ModelSpec) -> list[int]:
    heads, kv = model.num_attention_heads, model.num_key_value_heads or 1
    return [t for t in range(1, heads + 1) if heads % t == 0 and (kv % t == 0 or t % kv == 0)]


def _divides(part: Any, whole: Any) -> Any:
    return whole % part == 0


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        "gpus",
        ALL,
        lambda m, c, w, s: s.tp * s.pp * s.cp * s.dp == c.num_gpus,
        "tp {s.tp} x pp {s.pp} x cp {s.cp} x dp {s.dp} = {product} is not the {c.num_gpus} GPUs of the request",
        "leave one degree free, or choose degrees whose product is the number of GPUs",
        source="megatron-core 0.16.1 parallel_state.py:740",
    ),
    Constraint(
        "data_parallel_only",
        DATA_PARALLEL,
        lambda m, c, w, s: (s.tp == 1) & (s.pp == 1) & (s.cp == 1) & (s.ep == 1),
        "{s.framework} runs with data parallelism only here, not tp {s.tp} pp {s.pp} cp {s.cp} ep {s.ep}",
        "use --framework megatron for tensor, pipeline, context or expert parallelism",
    ),
    Constraint(
        "architecture",
        ("megatron",),
        lambda m, c, w, s: not inexpressible(m),
        "{m.name} ({m.model_type}) has parts that megatron-core 0.16.1 cannot build: {unbuildable}",
        "use --framework deepspeed or fsdp",
    ),
    Constraint(
        "method",
        ("megatron",),
        lambda m, c, w, s: w.method == "full",
        "the Megatron recipe trains all parameters, not {w.method}",
        "use --framework deepspeed or ddp for {w.method}",
    ),
    Constraint(
        "quantised_base",
        ("deepspeed", "fsdp"),
        lambda m, c, w, s: (w.method != "qlora") | ((s.zero_stage < 3) & (s.offload == 0)),
        "a 4-bit base model cannot be sharded or offloaded here (zero {s.zero_stage}, offload {s.offload})",
        "use zero stage 2 or lower, or --method lora",
    ),
    Constraint(
        "fp8",
        DATA_PARALLEL,
        lambda m, c, w, s: w.precision != "fp8",
        "fp8 training is planned for Megatron only, not {s.framework}",
        "use --framework megatron, or --precision bf16",
    ),
    Constraint(
        "tensor_heads",
        ("megatron",),
        lambda m, c, w, s: _divides(s.tp, m.num_attention_heads),
        "tp {s.tp} does not divide the {m.num_attention_heads} attention heads of {m.name}",
        "valid tp: {tp_choices}",
        source="megatron-core 0.16.1 transformer_config.py:924",
    ),
    Constraint(
        "tensor_groups",
        ("megatron",),
        lambda m, c, w, s: (m.num_key_value_heads % s.tp == 0) | (s.tp % max(m.num_key_value_heads, 1) == 0),
        "tp {s.tp} and the {m.num_key_value_heads} key-value heads of {m.name} do not divide one another",
        "valid tp: {tp_choices}",
        source="megatron-core 0.16.1 transformer_config.py:939",
    ),
    Constraint(
        "tensor_mlp",
        ("megatron",),
        lambda m, c, w, s: _divides(s.tp, m.intermediate_size) & _divides(s.tp, m.shared_expert_intermediate_size),
        "tp {s.tp} does not divide the MLP width {m.intermediate_size} of {m.name}",
        "choose a tp that divides it",
        source="megatron-core 0.16.1 tensor_parallel/utils.py:468 (found only when the model is built)",
    ),
    Constraint(
        "expert_mlp",
        ("megatron",),
        lambda m, c, w, s: _divides(s.etp, m.moe_intermediate_size),
        "etp {s.etp} does not divide the expert width {m.moe_intermediate_size} of {m.name}",
        "use --etp 1",
        source="megatron-core 0.16.1 tensor_parallel/utils.py:468",
    ),
    Constraint(
        "tensor_in_node",
        ("megatron",),
        lambda m, c, w, s: s.tp <= c.fast_domain,
        "tp {s.tp} leaves the {c.fast_domain} GPUs that share a fast link",
        "keep tp at {c.fast_domain} or below and use pp across nodes",
        advice=True,
    ),
    Constraint(
        "sequence_parallel",
        ("megatron",),
        lambda m, c, w, s: (s.sequence_parallel == 0) | (s.tp > 1),
        "sequence parallelism is inside tensor parallelism, but tp is {s.tp}",
        "drop --sequence-parallel or raise --tp",
        source="megatron-core 0.16.1 model_parallel_config.py:409",
    ),
    Constraint(
        "experts",
        ("megatron",),
        lambda m, c, w, s: (s.ep == 1) | (m.is_moe & _divides(s.ep, m.num_experts)),
        "ep {s.ep} does not divide the {m.num_experts} experts of {m.name}",
        "choose an ep that divides the number of experts (1 for a dense model)",
        source="megatron-core 0.16.1 moe_layer.py:101",
    ),
    Constraint(
        "expert_grid",
        ("megatron",),
        lambda m, c, w, s: _divides(s.etp * s.ep * s.pp, c.num_gpus),
        "etp {s.etp} x ep {s.ep} x pp {s.pp} = {expert_product} does not divide {c.num_gpus} GPUs",
        "lower ep or etp",
        source="megatron-core 0.16.1 parallel_state.py:792",
    ),
    Constraint(
        "experts_with_tensor",
        ("megatron",),
        lambda m, c, w, s: (not m.is_moe) | (s.tp == 1) | (s.sequence_parallel == 1),
        "experts with tp {s.tp} need sequence parallelism",
        "add --sequence-parallel",
        source="megatron-core 0.16.1 model_parallel_config.py:440",
    ),
    Constraint(
        "pipeline_layers",
        ("megatron",),
        lambda m, c, w, s: _divides(s.pp, m.num_hidden_layers),
        "pp {s.pp} does not divide the {m.num_hidden_layers} layers of {m.name}",
        "choose a pp that divides the layers",
        source="megatron-core 0.16.1 transformer_block.py:156",
    ),
    Constraint(
        "virtual_stages",
        ("megatron",),
        lambda m, c, w, s: (
            (s.virtual_pipeline_stages == 1)
            | ((s.pp > 1) & _divides(s.pp * s.virtual_pipeline_stages, m.num_hidden_layers))
        ),
        "{m.num_hidden_layers} layers are not a multiple of pp {s.pp} x {s.virtual_pipeline_stages} virtual stages "
        "(or pp is 1)",
        "layers % (pp x virtual stages) must be 0 and pp above 1",
        source="megatron-core 0.16.1 transformer_block.py:175, parallel_state.py:746; Megatron-LM issue 468",
    ),
    Constraint(
        "virtual_micro_batches",
        ("megatron",),
        lambda m, c, w, s: (s.virtual_pipeline_stages == 1) | _divides(s.pp, s.gradient_accumulation_steps),
        "{s.gradient_accumulation_steps} micro batches are not a multiple of pp {s.pp}, as interleaving needs",
        "change the micro batch, or use one virtual stage",
        source="megatron-core 0.16.1 schedules.py:1003-1015",
    ),
    Constraint(
        "context_length",
        ("megatron",),
        lambda m, c, w, s: (s.cp == 1) | (w.sequence_length % (2 * s.cp) == 0),
        "sequence length {w.sequence_length} is not a multiple of 2 x cp {s.cp}",
        "pad sequences to a multiple of {sequence_multiple}",
        source="Megatron-LM arguments.py:818 (core 0.16.1)",
    ),
    Constraint(
        "sequence_length",
        ("megatron",),
        lambda m, c, w, s: (s.sequence_parallel == 0) | (w.sequence_length % (s.cp * s.tp) == 0),
        "sequence length {w.sequence_length} / cp {s.cp} is not a multiple of tp {s.tp}, as sequence parallelism needs",
        "pad sequences to a multiple of {sequence_multiple}",
        source="megatron-core 0.16.1 tensor_parallel/mappings.py:173 (found only at run time)",
    ),
    Constraint(
        "global_batch",
        ALL,
        lambda m, c, w, s: s.micro_batch_size * s.dp * s.gradient_accumulation_steps == w.global_batch_size,
        "micro batch {s.micro_batch_size} x dp {s.dp} x accumulation {s.gradient_accumulation_steps} = "
        "{batch_product} is not the global batch of {w.global_batch_size} sequences",
        "choose a global batch that is a multiple of micro batch x dp",
        source="megatron-core 0.16.1 num_microbatches_calculator.py:340; DeepSpeed 0.19.8 runtime/config.py",
    ),
    Constraint(
        "zero_stages",
        ("ddp", "fsdp", "megatron"),
        lambda m, c, w, s: (
            (s.zero_stage == 0)
            if s.framework == "ddp"
            else (s.zero_stage == 3)
            if s.framework == "fsdp"
            else (s.zero_stage <= 1)
        ),
        "{s.framework} does not do zero stage {s.zero_stage}",
        "ddp is stage 0, the Megatron distributed optimizer is stage 1, fsdp is stage 3; deepspeed does 0 to 3",
    ),
    Constraint(
        "zero_needs_data_parallel",
        ALL,
        lambda m, c, w, s: (s.zero_stage == 0) | (s.dp * s.cp > 1),
        "ZeRO has no effect with data-parallel size {s.dp}: nothing is divided",
        "lower tp or pp so that dp grows, or drop the ZeRO stage",
        advice=True,
        source="DeepSpeed issue 237",
    ),
    Constraint(
        "shard_group",
        ("fsdp",),
        lambda m, c, w, s: _divides(s.dp_shard, s.dp),
        "the sharding group of {s.dp_shard} does not divide dp {s.dp}",
        "use the GPUs of one node, or all",
    ),
    Constraint(
        "offload",
        ALL,
        lambda m, c, w, s: (
            ((s.offload == 0) | (s.zero_stage >= 1)) & ((s.offload < 2) | (s.zero_stage == 3))
            if s.framework == "deepspeed"
            else (s.offload == 0)
        ),
        "offload level {s.offload} with {s.framework} zero stage {s.zero_stage}: optimizer offload needs DeepSpeed "
        "stage 1 or more, parameter offload needs stage 3",
        "use --zero 3 with parameter offload",
        source="DeepSpeed 0.19.8: offload_param is silently ignored below stage 3",
    ),
    Constraint(
        "hpz",
        ("deepspeed",),
        lambda m, c, w, s: (
            (s.hpz == 1)
            | (
                (s.zero_stage == 3)
                & _divides(s.hpz, s.dp)
                & (s.hpz <= c.gpus_per_node)
                & (c.nodes > 1)
                & (s.offload < 2)
            )
        ),
        "hpz {s.hpz} needs zero stage 3, a group that divides dp {s.dp} inside one node, and more than one node",
        "drop --hpz, or set it to the {c.gpus_per_node} GPUs of a node",
        source="DeepSpeed 0.19.8 zero/config.py; DeepSpeed issue 3827",
    ),
    Constraint(
        "recompute",
        DATA_PARALLEL,
        lambda m, c, w, s: s.recompute != 1,
        "selective recomputation is Megatron's; Hugging Face models recompute none or full",
        "use --recompute full or none",
    ),
)

# keeps searched plans equal in what they learn: the pinned fields above plus these two are checked last
MEMORY = "memory"
HOST_MEMORY = "host_memory"

SENTENCES = {
    MEMORY: "needs more memory than a GPU has",
    HOST_MEMORY: "needs more host memory than a node has",
} | {constraint.name: constraint.sentence for constraint in CONSTRAINTS}


def violated(request: Request, strategy: Strategy) -> list[tuple[Constraint, Problem]]:
    """Every constraint that a scalar strategy breaks, with its sentence filled in."""
    found = []
    for constraint in CONSTRAINTS:
        if strategy.framework not in constraint.frameworks:
            continue
        arguments = (request.model, request.cluster, request.workload, strategy)
        if not constraint.holds(*arguments):
            found.append(
                (
                    constraint,
                    Problem(_fill(constraint.sentence, request, strategy), _fill(constraint.remedy, request, strategy)),
                )
            )
    return found


def mask(request: Request, strategy: Strategy, eliminated: dict[str, int]) -> Any:
    """Boolean column of the rows that satisfy every constraint; counts the first one that each row breaks."""
    import numpy

    rows = len(strategy.dp)  # type: ignore[arg-type]
    alive = numpy.ones(rows, dtype=bool)
    for constraint in CONSTRAINTS:
        if strategy.framework not in constraint.frameworks:
            continue
        holds = constraint.holds(request.model, request.cluster, request.workload, strategy)
        after = alive & holds
        removed = int(alive.sum() - after.sum())
        if removed:
            eliminated[constraint.name] = eliminated.get(constraint.name, 0) + removed
        alive = after
    return alive


def _fill(text: str, request: Request, strategy: Strategy) -> str:
    from math import lcm

    s = strategy
    multiple = s.cp * lcm(2, s.tp) if s.sequence_parallel else 2 * s.cp
    return text.format(
        m=request.model,
        c=request.cluster,
        w=request.workload,
        s=s,
        product=s.tp * s.pp * s.cp * s.dp,
        expert_product=s.etp * s.ep * s.pp,
        unbuildable=", ".join(inexpressible(request.model)),
        batch_product=s.micro_batch_size * s.dp * s.gradient_accumulation_steps,
        tp_choices=", ".join(map(str, _tp_choices(request.model))),
        sequence_multiple=multiple,
    )


__all__ = ["CONSTRAINTS", "Constraint", "HOST_MEMORY", "MEMORY", "SENTENCES", "mask", "violated"]
