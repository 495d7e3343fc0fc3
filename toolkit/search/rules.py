"""What the frameworks accept, as a table: one Constraint for each rule, with its source.

Rules that a framework itself checks late (when the model is built, or in the first step) or never are
here too: a job must not find them after hours in a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.cluster import ClusterSpec
from toolkit.context_parallel import exchanging_ranks, heads_per_rank
from toolkit.megatron_shapes import inexpressible
from toolkit.model import ModelSpec
from toolkit.pipeline_split import IMPOSSIBLE, pipeline_split
from toolkit.strategy import FRAMEWORKS, Strategy
from toolkit.workload import Workload

Predicate = Callable[[ModelSpec, ClusterSpec, Workload, Strategy], Any]
ALL = FRAMEWORKS
SHORTEST_PIECE = 512  # tokens; a choice: published runs with context parallelism have 2,048 and more, tests of it 512
DATA_PARALLEL = ("ddp", "deepspeed", "fsdp")


@dataclass(frozen=True)
class Constraint:
    """One rule. ``holds`` works on scalars and columns, and reads the same fields of a strategy whatever they hold.

    ``rule`` says it in general; ``sentence`` and ``remedy`` are formats over m, c, w, s (model, cluster,
    workload, strategy). ``advice`` marks what is legal but pointless or unwise: the search drops it, a
    strategy that the user spelled out is only warned about.
    """

    name: str
    rule: str
    frameworks: tuple[str, ...]
    holds: Predicate
    sentence: str
    remedy: str = ""
    advice: bool = False
    source: str = ""


def _divides(part: Any, whole: Any) -> Any:
    return whole % part == 0


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        "data_parallel_only",
        "ddp and fsdp have tp = pp = cp = ep = etp = 1 here, deepspeed pp = cp = ep = 1",
        DATA_PARALLEL,
        lambda m, c, w, s: (
            (((s.tp == 1) & (s.etp == 1)) | (s.framework == "deepspeed")) & (s.pp == 1) & (s.cp == 1) & (s.ep == 1)
        ),
        "{s.framework} runs with data parallelism only here, not tp {s.tp} pp {s.pp} cp {s.cp} ep {s.ep} etp {s.etp}",
        "use --framework megatron for tensor, pipeline, context or expert parallelism",
    ),
    Constraint(
        "tensor_parallel_files",
        "DeepSpeed's tensor parallelism is estimated, but no files are written for it",
        ("deepspeed",),
        lambda m, c, w, s: s.tp == 1,
        "deepspeed with tp {s.tp} (AutoTP, or Megatron's layers) is estimated only: no files are written for it",
        "use --framework megatron for a plan that can be started",
        advice=True,
    ),
    Constraint(
        "gpus",
        "tp x pp x cp x dp must be the number of GPUs",
        ALL,
        lambda m, c, w, s: 1.0 * s.tp * s.pp * s.cp * s.dp == c.num_gpus,
        "tp {s.tp} x pp {s.pp} x cp {s.cp} x dp {s.dp} = {product} is not the {c.num_gpus} GPUs of the request",
        "leave one degree free, or choose degrees whose product is the number of GPUs",
        source="megatron-core 0.16.1 parallel_state.py:740",
    ),
    Constraint(
        "architecture",
        "megatron-core must be able to build the model",
        ("megatron",),
        lambda m, c, w, s: not inexpressible(m),
        "{m.name} ({m.model_type}) has parts that megatron-core 0.16.1 cannot build: {unbuildable}",
        "use --framework deepspeed or fsdp",
    ),
    Constraint(
        "method",
        "Megatron trains all parameters: no adapters",
        ("megatron",),
        lambda m, c, w, s: w.method == "full",
        "the Megatron recipe trains all parameters, not {w.method}",
        "use --framework deepspeed or ddp for {w.method}",
    ),
    Constraint(
        "quantised_base",
        "a 4-bit base model is neither sharded (ZeRO-3) nor offloaded",
        ("deepspeed", "fsdp"),
        lambda m, c, w, s: (w.method != "qlora") | ((s.zero_stage < 3) & (s.offload == 0)),
        "a 4-bit base model cannot be sharded or offloaded here (zero {s.zero_stage}, offload {s.offload})",
        "use zero stage 2 or lower, or --method lora",
    ),
    Constraint(
        "fp8",
        "fp8 is planned for Megatron only",
        DATA_PARALLEL,
        lambda m, c, w, s: w.precision != "fp8",
        "fp8 training is planned for Megatron only, not {s.framework}",
        "use --framework megatron, or --precision bf16",
    ),
    Constraint(
        "tensor_heads",
        "tp must divide the attention heads",
        ("megatron",),
        lambda m, c, w, s: _divides(s.tp, m.num_attention_heads),
        "tp {s.tp} does not divide the {m.num_attention_heads} attention heads of {m.name}",
        "valid tp: {tp_choices}",
        source="megatron-core 0.16.1 transformer_config.py:924",
    ),
    Constraint(
        "tensor_groups",
        "tp and the key-value heads must divide one another",
        ("megatron",),
        lambda m, c, w, s: (m.num_key_value_heads % s.tp == 0) | (s.tp % max(m.num_key_value_heads, 1) == 0),
        "tp {s.tp} and the {m.num_key_value_heads} key-value heads of {m.name} do not divide one another",
        "valid tp: {tp_choices}",
        source="megatron-core 0.16.1 transformer_config.py:939",
    ),
    Constraint(
        "tensor_mlp",
        "tp must divide the MLP width",
        ("megatron",),
        lambda m, c, w, s: _divides(s.tp, m.intermediate_size) & _divides(s.tp, m.shared_expert_intermediate_size),
        "tp {s.tp} does not divide the MLP width {m.intermediate_size} of {m.name}",
        "choose a tp that divides it",
        source="megatron-core 0.16.1 tensor_parallel/utils.py:468 (found only when the model is built)",
    ),
    Constraint(
        "expert_mlp",
        "etp must divide the expert width",
        ("megatron",),
        lambda m, c, w, s: _divides(s.etp, m.moe_intermediate_size),
        "etp {s.etp} does not divide the expert width {m.moe_intermediate_size} of {m.name}",
        "use --etp 1",
        source="megatron-core 0.16.1 tensor_parallel/utils.py:468",
    ),
    Constraint(
        "tensor_in_node",
        "tp should stay inside the GPUs that share a fast link",
        ("megatron",),
        lambda m, c, w, s: s.tp <= c.fast_domain,
        "tp {s.tp} leaves the {c.fast_domain} GPUs that share a fast link",
        "keep tp at {c.fast_domain} or below and use pp across nodes",
        advice=True,
    ),
    Constraint(
        "sequence_parallel",
        "sequence parallelism needs tp > 1",
        ALL,
        lambda m, c, w, s: (s.sequence_parallel == 0) | (s.tp > 1),
        "sequence parallelism is inside tensor parallelism, but tp is {s.tp}",
        "drop --sequence-parallel or raise --tp",
        source="megatron-core 0.16.1 model_parallel_config.py:409",
    ),
    Constraint(
        "experts",
        "ep must divide the experts",
        ("megatron",),
        lambda m, c, w, s: (s.ep == 1) | (m.is_moe & _divides(s.ep, m.num_experts)),
        "ep {s.ep} does not divide the {m.num_experts} experts of {m.name}",
        "choose an ep that divides the number of experts (1 for a dense model)",
        source="megatron-core 0.16.1 moe_layer.py:101",
    ),
    Constraint(
        "expert_tensor",
        "a dense model has no experts to cut",
        ("megatron",),
        lambda m, c, w, s: m.is_moe | (s.etp == 1) | (s.etp == s.tp),
        "{m.name} has no experts, so etp {s.etp} would do nothing",
        "leave --etp out",
        source="megatron-core 0.16.1 model_parallel_config.py: expert_tensor_model_parallel_size is read by MoE layers",
    ),
    Constraint(
        "expert_bias",
        "experts with biases are not cut by tensor parallelism",
        ("megatron",),
        lambda m, c, w, s: (not (m.is_moe and (m.mlp_bias or m.expert_bias))) | (s.etp == 1),
        "the experts of {m.name} have biases, which etp {s.etp} cannot cut",
        "use --etp 1",
        source="megatron-core 0.16.1 transformer_config.py:1588",
    ),
    Constraint(
        "expert_tensor_inside_tensor",
        "experts should be cut into no more parts than the rest of a layer: ep spreads them with less communication",
        ("megatron",),
        lambda m, c, w, s: _divides(s.etp, s.tp),
        "etp {s.etp} does not divide tp {s.tp}: experts would gather the tokens of several data-parallel ranks",
        "use --etp 1 or a divisor of tp, and raise --ep",
        advice=True,
    ),
    Constraint(
        "expert_grid",
        "etp x ep x pp must divide the GPUs",
        ("megatron",),
        lambda m, c, w, s: _divides(s.etp * s.ep * s.pp, c.num_gpus),
        "etp {s.etp} x ep {s.ep} x pp {s.pp} = {expert_product} does not divide {c.num_gpus} GPUs",
        "lower ep or etp",
        source="megatron-core 0.16.1 parallel_state.py:792",
    ),
    Constraint(
        "experts_with_tensor",
        "experts with tp > 1 need sequence parallelism",
        ("megatron",),
        lambda m, c, w, s: (not m.is_moe) | (s.tp == 1) | (s.sequence_parallel == 1),
        "experts with tp {s.tp} need sequence parallelism",
        "add --sequence-parallel",
        source="megatron-core 0.16.1 model_parallel_config.py:440",
    ),
    Constraint(
        "pipeline_layers",
        "the layers must split over pp stages (even, counting embedding or head, or shorter ends)",
        ("megatron",),
        lambda m, c, w, s: pipeline_split(m.num_hidden_layers, s.pp).way != IMPOSSIBLE,
        "the {m.num_hidden_layers} layers of {m.name} cannot be split over pp {s.pp} stages",
        "choose a smaller pp, or one that divides the layers, the layers + 1 or the layers + 2",
        source="megatron-core 0.16.1 transformer_block.py:156, transformer_config.py:1294-1480",
    ),
    Constraint(
        "virtual_stages",
        "the layers (embedding and head counted as one each, or not) must split over pp x virtual stages, and "
        "interleaving needs pp > 1",
        ALL,
        lambda m, c, w, s: (
            (s.virtual_pipeline_stages == 1)
            | ((s.pp > 1) & (pipeline_split(m.num_hidden_layers, s.pp, s.virtual_pipeline_stages).way != IMPOSSIBLE))
        ),
        "{m.num_hidden_layers} layers over pp {s.pp} cannot be cut into {s.virtual_pipeline_stages} equal virtual "
        "stages",
        "valid --vpp with pp {s.pp}: {vpp_choices}",
        source="megatron-core 0.16.1 transformer_block.py:175, parallel_state.py:746; Megatron-LM issue 468",
    ),
    Constraint(
        "virtual_micro_batches",
        "interleaving needs micro batches in multiples of pp",
        ("megatron",),
        lambda m, c, w, s: (s.virtual_pipeline_stages == 1) | _divides(s.pp, s.gradient_accumulation_steps),
        "{s.gradient_accumulation_steps} micro batches are not a multiple of pp {s.pp}, as interleaving needs",
        "change the micro batch, or use one virtual stage",
        source="megatron-core 0.16.1 schedules.py:1003-1015",
    ),
    Constraint(
        "context_length",
        "the sequence length must be a multiple of 2 x cp",
        ("megatron",),
        lambda m, c, w, s: (s.cp == 1) | (w.sequence_length % (2 * s.cp) == 0),
        "sequence length {w.sequence_length} is not a multiple of 2 x cp {s.cp}",
        "pad sequences to a multiple of {sequence_multiple}",
        source="Megatron-LM arguments.py:818 (core 0.16.1)",
    ),
    Constraint(
        "context_short",
        "a rank should keep some hundreds of tokens of a sequence: kernels of shorter pieces were never measured",
        ("megatron",),
        lambda m, c, w, s: (s.cp == 1) | (w.sequence_length >= SHORTEST_PIECE * s.cp),
        "cp {s.cp} leaves a rank fewer than "
        + str(SHORTEST_PIECE)
        + " of the {w.sequence_length} tokens of a sequence",
        "lower --cp; dp shares sequences without cutting them",
        advice=True,
    ),
    Constraint(
        "context_method",
        "a way of sharing keys and values needs cp > 1 to have an effect",
        ALL,
        lambda m, c, w, s: (s.cp_method == "p2p") | (s.cp > 1),
        "cp method {s.cp_method} shares nothing with cp {s.cp}",
        "raise --cp (megatron), or leave --cp-method out",
        source="megatron-core 0.16.1 transformer_layer.py:295",
    ),
    Constraint(
        "context_heads",
        "exchanging heads needs query and key-value heads of a rank that cp divides",
        ("megatron",),
        lambda m, c, w, s: (s.cp_method != "a2a") | _divides(s.cp, heads_per_rank(m, s.tp)),
        "cp {s.cp} by a2a does not divide the {m.num_attention_heads} query and {m.num_key_value_heads} key-value "
        "heads of {m.name} over tp {s.tp}",
        "lower --cp or --tp, or use --cp-method p2p",
        source="Transformer Engine 2.x context_parallel.py, AttnFuncWithCPAndQKVOA2A",
    ),
    Constraint(
        "context_levels",
        "two levels of context parallelism need ranks to exchange heads with inside a node, and more than one such "
        "group",
        ("megatron",),
        lambda m, c, w, s: (
            (s.cp_method != "a2a+p2p")
            | ((exchanging_ranks(m, c.fast_domain, s) > 1) & (exchanging_ranks(m, c.fast_domain, s) < s.cp))
        ),
        "cp {s.cp} has no two levels: heads of {m.name} over tp {s.tp} can be exchanged by {exchanging} ranks of a "
        "node",
        "use --cp-method p2p or a2a",
        source="Transformer Engine 2.x context_parallel.py, attn_forward_func_with_cp",
    ),
    Constraint(
        "context_latent",
        "latent attention shares keys and values in a ring only (p2p or a2a+p2p)",
        ("megatron",),
        lambda m, c, w, s: (not m.is_mla) | (s.cp_method == "p2p") | (s.cp_method == "a2a+p2p"),
        "the latent attention of {m.name} does not run with cp method {s.cp_method}",
        "use --cp-method p2p or a2a+p2p",
        source="Transformer Engine 2.x context_parallel.py, attn_forward_func_with_cp",
    ),
    Constraint(
        "context_window",
        "a sliding window does not run in a ring (a2a or all_gather)",
        ("megatron",),
        lambda m, c, w, s: (
            (not 0 < m.sliding_window < w.sequence_length)
            | (s.cp == 1)
            | (s.cp_method == "a2a")
            | (s.cp_method == "all_gather")
        ),
        "the sliding window of {m.name} does not run with cp method {s.cp_method}",
        "use --cp-method a2a or all_gather",
        source="Transformer Engine 2.x context_parallel.py, attn_forward_func_with_cp",
    ),
    Constraint(
        "sequence_length",
        "with sequence parallelism the sequence length must be a multiple of cp x tp",
        ("megatron",),
        lambda m, c, w, s: (s.sequence_parallel == 0) | (w.sequence_length % (s.cp * s.tp) == 0),
        "sequence length {w.sequence_length} / cp {s.cp} is not a multiple of tp {s.tp}, as sequence parallelism needs",
        "pad sequences to a multiple of {sequence_multiple}",
        source="megatron-core 0.16.1 tensor_parallel/mappings.py:173 (found only at run time)",
    ),
    Constraint(
        "global_batch",
        "micro batch x dp x accumulation must be the global batch",
        ALL,
        lambda m, c, w, s: 1.0 * s.micro_batch_size * s.dp * s.gradient_accumulation_steps == w.global_batch_size,
        "micro batch {s.micro_batch_size} x dp {s.dp} x accumulation {s.gradient_accumulation_steps} = "
        "{batch_product} is not the global batch of {w.global_batch_size} sequences",
        "choose a global batch that is a multiple of micro batch x dp",
        source="megatron-core 0.16.1 num_microbatches_calculator.py:340; DeepSpeed 0.19.8 runtime/config.py",
    ),
    Constraint(
        "zero_stages",
        "ddp is stage 0, Megatron 0 or 1, fsdp 3, deepspeed 0 to 3",
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
        "ZeRO divides nothing when dp x cp is 1",
        ALL,
        # ... but offload on one GPU is reached through a stage, and saves what it saves
        lambda m, c, w, s: (s.zero_stage == 0) | (s.dp * s.cp > 1) | (s.offload > 0),
        "ZeRO has no effect with data-parallel size {s.dp}: nothing is divided",
        "lower tp or pp so that dp grows, or drop the ZeRO stage",
        advice=True,
        source="DeepSpeed issue 237",
    ),
    Constraint(
        "shard_group",
        "the sharding group must divide dp, and only fsdp has one smaller than dp",
        ALL,
        lambda m, c, w, s: _divides(s.dp_shard, s.dp) if s.framework == "fsdp" else s.dp_shard == s.dp,
        "{s.framework} cannot share a copy among {s.dp_shard} of the dp {s.dp} ranks",
        "use --framework fsdp with the GPUs of one node, or leave --dp-shard out",
        source="torch.distributed.fsdp ShardingStrategy.HYBRID_SHARD",
    ),
    Constraint(
        "offload",
        "optimizer offload needs DeepSpeed stage 1, parameter offload stage 3",
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
        "hpZ needs DeepSpeed stage 3, a group inside one node, and several nodes",
        ALL,
        lambda m, c, w, s: (
            (s.hpz == 1)
            | (
                (s.framework == "deepspeed")
                & (s.zero_stage == 3)
                & _divides(s.hpz, s.dp)
                & (s.hpz <= c.gpus_per_node)
                & (c.nodes > 1)
                & (s.offload < 2)
            )
        ),
        "hpz {s.hpz} needs DeepSpeed zero stage 3, a group that divides dp {s.dp} inside one node, and more than one "
        "node",
        "drop --hpz, or set it to the {c.gpus_per_node} GPUs of a node",
        source="DeepSpeed 0.19.8 zero/config.py; DeepSpeed issue 3827",
    ),
    Constraint(
        "recompute",
        "selective recomputation is Megatron's",
        DATA_PARALLEL,
        lambda m, c, w, s: s.recompute != 1,
        "selective recomputation is Megatron's; Hugging Face models recompute none or full",
        "use --recompute full or none",
    ),
    Constraint(
        "recompute_flash",
        "recomputing the core of flash attention saves nothing: it never stores the scores",
        ("megatron",),
        lambda m, c, w, s: (s.recompute != 1) | (w.attention != "flash") | (w.recompute_modules != "core_attn"),
        "selective recomputation of flash attention saves no memory and takes time",
        "use --recompute none, or full with --recompute-layers",
        advice=True,
        source="megatron-core 0.16.1 transformer_config.py:1228",
    ),
    Constraint(
        "recompute_some",
        "recomputing some layers is Megatron's",
        DATA_PARALLEL,
        lambda m, c, w, s: s.recompute_layers == 0,
        "Hugging Face models recompute every layer or none, not {s.recompute_layers}",
        "leave --recompute-layers out, or use --framework megatron",
        source="transformers 5.24 modeling_utils.py, gradient_checkpointing_enable",
    ),
    Constraint(
        "recompute_layers",
        "some layers of a stage, as many in each virtual stage, belong to full recomputation",
        ("megatron",),
        lambda m, c, w, s: (
            (s.recompute_layers == 0)
            | (
                (s.recompute == 2)
                & _divides(s.virtual_pipeline_stages, s.recompute_layers)
                & (s.recompute_layers < pipeline_split(m.num_hidden_layers, s.pp, s.virtual_pipeline_stages).middle)
            )
        ),
        "{s.recompute_layers} recomputed layers of a stage: with full recomputation it can be a multiple of the "
        "{s.virtual_pipeline_stages} virtual stages below the {stage_layers} layers of a stage",
        "use --recompute full; leave --recompute-layers out for all of them",
        source="megatron-core 0.16.1 transformer_block.py:544; its upper bound is not checked there",
    ),
)
