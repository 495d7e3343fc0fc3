"""What an emitter refuses to write, because the files would say something else than the plan.

A plan.json can be edited by hand, so each emitter asks again. Only what an emitter itself divides,
rounds or has no words for is refused here; the rules of the frameworks belong to the search.
"""

from __future__ import annotations

from toolkit.context_parallel import exchanging_ranks
from toolkit.errors import Problems
from toolkit.megatron_shapes import inexpressible
from toolkit.pipeline_split import IMPOSSIBLE, pipeline_split
from toolkit.plan import Plan
from toolkit.programs import unfollowed
from toolkit.recipe import CHOICES, contract_problems, planned_steps
from toolkit.strategy import RECOMPUTE

SELECTIVE, FULL = RECOMPUTE.index("selective"), RECOMPUTE.index("full")
_TRAINER = ("adamw", "adamw_unfused", "adamw_paged", "adamw_8bit", "adamw_8bit_paged", "sgd")
OPTIMIZERS = {
    "ddp": _TRAINER,
    "deepspeed": _TRAINER,
    "fsdp": _TRAINER,
    "megatron": ("adamw", "sgd"),
}

# --recompute-modules of megatron-core 0.16.1, transformer_config.py:1196
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
# of a workload: what the files of Megatron say without a word for anything else
_STATED = {
    "weights": "default",
    "engine": "default",
    "fused_loss": "native",
    "expert_dispatch": "alltoall",
    "expert_overlap": False,
    "cuda_graphs": "none",
}
SUMS = ("default", "bf16", "fp32")
COUNTS = ("tp", "pp", "cp", "ep", "etp", "dp", "virtual_pipeline_stages", "hpz")


def require_layout(problems: Problems, plan: Plan) -> None:
    """World size, batch triple, contract and workload must agree exactly: nothing is rounded later."""
    s, cluster, work = plan.strategy, plan.cluster, plan.workload
    counts = {name: getattr(s, name) for name in (*COUNTS, "micro_batch_size", "gradient_accumulation_steps")}
    counts |= {"nodes": cluster.nodes, "gpus_per_node": cluster.gpus_per_node, "hidden_size": plan.model.hidden_size}
    counts |= {"num_hidden_layers": plan.model.num_hidden_layers, "vocab_size": plan.model.vocab_size}
    counts |= {"sequence_length": work.sequence_length, "global_batch_size": work.global_batch_size}
    for name, count in counts.items():
        if count < 1:
            problems.add(f"{name} is {count}", "it must be 1 or more")
    for name, value, known in (
        ("precision", work.precision, CHOICES["precision"]),
        ("gradient_accumulation_dtype", work.gradient_accumulation_dtype, SUMS),
    ):
        if value not in known:
            problems.add(f"{name} {value!r} is not known", f"use one of {', '.join(known)}")
    for problem in (*contract_problems(plan.contract), *unfollowed(plan.program, plan.contract)):
        problems.add(f"contract.{problem.message}", problem.remedy)
    world = s.tp * s.pp * s.cp * s.dp
    if world != cluster.num_gpus:
        problems.add(
            f"tp {s.tp} x pp {s.pp} x cp {s.cp} x dp {s.dp} = {world} processes, "
            f"but {cluster.nodes} nodes x {cluster.gpus_per_node} = {cluster.num_gpus}",
            "plan again for this cluster with toolkit plan",
        )
    batch = s.micro_batch_size * s.gradient_accumulation_steps * s.dp
    if batch != work.global_batch_size:
        problems.add(
            f"micro batch {s.micro_batch_size} x accumulation {s.gradient_accumulation_steps} x dp {s.dp} = {batch}, "
            f"but the global batch is {work.global_batch_size}",
            "the global batch belongs to the experiment: change micro batch or accumulation so that the product is it",
        )
    for field in ("global_batch_size", "sequence_length", "precision", "method", "optimizer", "objective"):
        planned, learnt = getattr(work, field), getattr(plan.contract, field)
        if planned != learnt:
            problems.add(
                f"{field} is {planned!r} in the plan's workload and {learnt!r} in its contract",
                "plan again with toolkit plan: the estimates belong to the first, the program follows the second",
            )
    stated = OPTIMIZERS.get(s.framework)
    if stated is None:
        problems.add(f"framework {s.framework!r} is not known", f"use one of {', '.join(OPTIMIZERS)}")
    elif work.optimizer not in stated:
        problems.add(
            f"optimizer {work.optimizer!r} with {s.framework} is not something that these files can state",
            f"use one of {', '.join(stated)}",
        )


def require_data_parallel(problems: Problems, plan: Plan) -> None:
    """DeepSpeed, FSDP and DDP files here describe data-parallel ranks only."""
    s = plan.strategy
    if (s.tp, s.pp, s.cp, s.ep) != (1, 1, 1, 1):
        problems.add(
            f"{s.framework} with tp {s.tp}, pp {s.pp}, cp {s.cp}, ep {s.ep}: only data parallelism can be written",
            "use --framework megatron for the other axes",
        )
    if s.recompute_layers:
        problems.add(
            f"{s.framework} with {s.recompute_layers} recomputed layers cannot be written: its models recompute every "
            "layer or none",
            "leave --recompute-layers out, or use --framework megatron",
        )
    if plan.workload.precision == "fp8":
        problems.add(f"{s.framework} with fp8 cannot be written", "use --framework megatron, or --precision bf16")


def require_megatron(problems: Problems, plan: Plan) -> None:
    """Layers per stage must come out whole, and the model must be one that the flags can describe."""
    s, model = plan.strategy, plan.model
    split = pipeline_split(model.num_hidden_layers, max(1, s.pp), max(1, s.virtual_pipeline_stages))
    if split.way == IMPOSSIBLE:
        problems.add(
            f"{model.num_hidden_layers} layers do not divide into pp {s.pp} x {s.virtual_pipeline_stages} virtual "
            "stages, also not with shorter ends: Megatron would build fewer layers without a word",
            "choose degrees whose product divides the layers",
        )
    if s.virtual_pipeline_stages > 1 and s.pp == 1:
        problems.add(f"{s.virtual_pipeline_stages} virtual pipeline stages with pp 1", "use pp of 2 or more")
    if s.zero_stage > 1 or s.offload:
        problems.add(
            f"Megatron with zero stage {s.zero_stage} and offload level {s.offload} cannot be written",
            "its distributed optimizer is stage 1, without offload",
        )
    if s.recompute_layers and (s.recompute != FULL or s.recompute_layers % max(1, s.virtual_pipeline_stages)):
        problems.add(
            f"{s.recompute_layers} recomputed layers with recompute {RECOMPUTE[s.recompute]} and "
            f"{s.virtual_pipeline_stages} virtual stages cannot be written",
            "it is a multiple of the virtual stages, of full recomputation",
        )
    if s.cp_method == "a2a+p2p" and min(s.tp, s.cp) > 0:
        inner = exchanging_ranks(model, plan.cluster.fast_domain, s)
        if not 1 < inner < s.cp:
            problems.add(
                f"cp {s.cp} has no two levels: {inner} ranks of a node can exchange heads", "use --cp-method p2p or a2a"
            )
    unusual = (("schedule", "1f1b"), ("vocabulary", "ends"), ("tp_overlap", "backward"), ("dp_overlap", "all"))
    for name, usual in unusual:
        if getattr(s, name) != usual:
            problems.add(
                f"{name} {getattr(s, name)} is not something that these files can state",
                f"they state {usual}: megatron-core 0.16.1 without Transformer Engine runs nothing else",
            )
    for name, stated in _STATED.items():
        if getattr(plan.workload, name) != stated:
            problems.add(
                f"{name} {getattr(plan.workload, name)!r} is not something that these files can state",
                f"they state {stated}",
            )
    unknown = sorted(set(plan.workload.recompute_modules.split("+")) - set(MODULES))
    if s.recompute == SELECTIVE and unknown:
        problems.add(
            f"megatron-core 0.16.1 does not recompute {', '.join(unknown)}", f"use modules of {', '.join(MODULES)}"
        )
    if plan.workload.method != "full":
        problems.add(f"Megatron with method {plan.workload.method!r} cannot be written", "use --framework deepspeed")
    contract = plan.contract
    if contract.decay_fraction and not planned_steps(contract):
        problems.add(
            "the decay is a share of all steps, and the contract says only how many epochs there are",
            "set total_steps or total_tokens: Megatron's flags count the steps of a decay",
        )
    for words in inexpressible(model):
        problems.add(f"{model.name}: megatron-core 0.16.1 cannot build {words}", "use --framework deepspeed or fsdp")
