"""Rules of models and degrees: what can be built, and how tensor and expert parallelism cut it."""

from __future__ import annotations

from toolkit.megatron_shapes import inexpressible
from toolkit.search.rule import ALL, DATA_PARALLEL, Constraint, divides

DEGREES: tuple[Constraint, ...] = (
    Constraint(
        "data_parallel_only",
        "ddp, fsdp and deepspeed have tp = pp = cp = ep = etp = 1 here",
        DATA_PARALLEL,
        # DeepSpeed's tensor parallelism has a rule of its own: it is estimated, and cuts experts as all else
        lambda m, c, w, s: (
            ((s.tp == 1) | (s.framework == "deepspeed"))
            & ((s.etp == 1) | ((s.framework == "deepspeed") & (s.etp == s.tp)))
            & (s.pp == 1)
            & (s.cp == 1)
            & (s.ep == 1)
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
        "a 4-bit base model is neither sharded (ZeRO-3, FSDP) nor offloaded by this toolkit: each GPU holds it whole",
        ("deepspeed", "fsdp"),
        lambda m, c, w, s: (w.method != "qlora") | ((s.zero_stage < 3) & (s.offload == 0)),
        "this toolkit neither shards nor offloads a 4-bit base model, as FSDP-QLoRA elsewhere does "
        "(zero {s.zero_stage}, offload {s.offload})",
        "use zero stage 2 or lower on GPUs that hold the whole base, or --method lora",
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
        lambda m, c, w, s: divides(s.tp, m.num_attention_heads),
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
        lambda m, c, w, s: divides(s.tp, m.intermediate_size) & divides(s.tp, m.shared_expert_intermediate_size),
        "tp {s.tp} does not divide the MLP width {m.intermediate_size} of {m.name}",
        "choose a tp that divides it",
        source="megatron-core 0.16.1 tensor_parallel/utils.py:468 (found only when the model is built)",
    ),
    Constraint(
        "expert_mlp",
        "etp must divide the expert width",
        ("megatron",),
        lambda m, c, w, s: divides(s.etp, m.moe_intermediate_size),
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
        lambda m, c, w, s: (s.ep == 1) | (m.is_moe & divides(s.ep, m.num_experts)),
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
        lambda m, c, w, s: divides(s.etp, s.tp),
        "etp {s.etp} does not divide tp {s.tp}: experts would gather the tokens of several data-parallel ranks",
        "use --etp 1 or a divisor of tp, and raise --ep",
        advice=True,
    ),
    Constraint(
        "expert_grid",
        "etp x ep x pp must divide the GPUs",
        ("megatron",),
        lambda m, c, w, s: divides(s.etp * s.ep * s.pp, c.num_gpus),
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
)
