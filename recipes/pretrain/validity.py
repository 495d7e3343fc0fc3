"""What cannot run, and what would run and learn the wrong thing: refused before torch is imported.

The second kind is why this exists: megatron-core accepts an interleaved pipeline of two stages without
overlapped sends, trains, and its losses are wrong without any error (found by running 0.16.1; only
Megatron-LM's own argument parser knows). Rules that the library finds at its first forward pass or never
(heads and key-value groups, zigzag halves, sequence-parallel slices) are here too, so that a job fails in
its first second and with all its problems at once.
"""

from __future__ import annotations

from recipes.finetune.checks import is_cpu
from recipes.pretrain import agreement
from recipes.pretrain.config import CoreConfig
from recipes.schedule import SCHEDULES
from toolkit.errors import Problems
from toolkit.plan import Plan

DTYPE_NAMES = ("fp32", "bf16", "fp16")
ACTIVATION_NAMES = ("silu", "gelu", "gelu_tanh")
UNEVEN_SPLITS = (
    "pipeline_model_parallel_layout",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
EP = "expert_model_parallel_size"
WHOLE = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "num_moe_experts",
    "moe_ffn_hidden_size",
    "moe_router_topk",
    "vocab_size",
    "max_sequence_length",
    "microbatch_group_size_per_vp_stage",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
)
UNSUPPORTED = {
    "multi_latent_attention": "multi-head latent attention",
    "mtp_num_layers": "multi-token prediction",
    "fp4": "four-bit training",
}


def check(plan: Plan, core: CoreConfig, world_size: int) -> None:
    """Raise ToolkitError with every problem of this plan, this file and this number of processes."""
    with Problems() as problems:  # what the rules below count with
        _numbers(problems, core)
    with Problems() as problems:
        _degrees(problems, plan, core, world_size)
        shapes(problems, core)
        _pipeline(problems, plan, core)
        _names(problems, core)
        agreement.check(problems, plan, core)
        if core.transformer.get("fp8") and is_cpu(plan):
            problems.add(
                f"fp8 ({core.transformer['fp8']}) needs GPUs that multiply it, and the plan is for CPUs",
                "plan with --precision bf16, or for NVIDIA GPUs of compute capability 8.9 or more",
            )


def _numbers(problems: Problems, core: CoreConfig) -> None:
    """Sizes and degrees must be whole numbers: the sections are keywords of the library's, which nobody has typed."""
    for section in ("transformer", "model", "parallel"):
        for key, value in getattr(core, section).items():
            counted = key in WHOLE or key.endswith("_parallel_size")
            if counted and value is not None and (type(value) is not int or value < 0):
                problems.add(f"{section}.{key} is {value!r}"[:200], "it must be a whole number, or null")
    for key in ("micro_batch_size", "global_batch_size", "sequence_length"):
        if getattr(core.training, key) < 1:
            problems.add(f"training.{key} is {getattr(core.training, key)}", "it must be 1 or more")


def _degrees(problems: Problems, plan: Plan, core: CoreConfig, world_size: int) -> None:
    strategy, training = plan.strategy, core.training
    if plan.program != "pretrain" or strategy.framework != "megatron":
        problems.add(
            f"the plan is for program {plan.program!r} and framework {strategy.framework!r}, not pretrain and megatron",
            "start the program that the emitted script names, or plan with --framework megatron",
        )
    planned = strategy.tp * strategy.pp * strategy.cp * strategy.dp
    if world_size != planned:
        problems.add(
            f"{world_size} processes were started, the plan needs {planned}"
            f" (tp {strategy.tp} x pp {strategy.pp} x cp {strategy.cp} x dp {strategy.dp})",
            f"start {planned} processes (nodes x --nproc-per-node), or plan again for {world_size} GPUs",
        )
    planned_degrees = {
        "tensor_model_parallel_size": strategy.tp,
        "pipeline_model_parallel_size": strategy.pp,
        "virtual_pipeline_model_parallel_size": strategy.virtual_pipeline_stages,
        "context_parallel_size": strategy.cp,
        "expert_model_parallel_size": strategy.ep,
    }
    for section in ("parallel", "transformer"):
        for key, value in planned_degrees.items():
            found = getattr(core, section).get(key) or 1
            if found != value:
                problems.add(
                    f"{section}.{key} is {found} in the megatron file and {value} in the plan",
                    "write the megatron file again with toolkit emit: the two belong to different plans",
                )
    micro_batches = strategy.gradient_accumulation_steps
    if training.micro_batch_size * micro_batches * strategy.dp != training.global_batch_size:
        problems.add(
            f"global batch {training.global_batch_size} is not micro batch {training.micro_batch_size}"
            f" x accumulation {micro_batches} x dp {strategy.dp}",
            "write the megatron file again with toolkit emit",
        )
    for key in ("use_distributed_optimizer", "overlap_param_gather"):
        if core.optimizer.get(key, False) != core.ddp.get(key, False):
            problems.add(f"optimizer.{key} and ddp.{key} differ", "set both to the same value")


def shapes(problems: Problems, core: CoreConfig) -> None:
    """What the degrees must divide, and what this program does not build."""
    shape, sequence = core.transformer, core.training.sequence_length
    tp, cp = (core.parallel.get(f"{axis}_parallel_size") or 1 for axis in ("tensor_model", "context"))
    heads = shape.get("num_attention_heads") or 1
    groups = shape.get("num_query_groups") or heads
    feed_forward = shape.get("ffn_hidden_size") or 4 * (shape.get("hidden_size") or 0)
    exchanged = cp if shape.get("cp_comm_type") == "a2a" else 1
    divisions = [
        ("transformer.num_attention_heads", heads, "tp", tp),
        ("transformer.num_attention_heads", heads, "num_query_groups", groups),
        ("model.vocab_size", core.model.get("vocab_size") or 0, "tp", tp),
        ("transformer.ffn_hidden_size", feed_forward, "tp", tp),
        ("transformer.num_moe_experts", shape.get("num_moe_experts") or 0, "ep", shape.get(EP) or 1),
        ("training.sequence_length", sequence, "2 cp" if cp > 1 else "cp", 2 * cp if cp > 1 else 1),
        ("query heads of a rank", heads // tp, "cp, as a2a needs", exchanged),
        ("key-value heads of a rank", max(groups // tp, 1), "cp, as a2a needs", exchanged),
        ("training.sequence_length", sequence, "tp x cp", tp * cp if shape.get("sequence_parallel") else 1),
    ]
    for name, value, what, divisor in divisions:
        if value % divisor:
            problems.add(f"{name} {value} is not a multiple of {what} {divisor}", "choose another degree or shape")
    if groups % tp and tp % groups:
        problems.add(f"num_query_groups {groups} and tp {tp} do not divide each other", "choose another tp")
    if not isinstance(core.optimizer.get("lr"), (int, float)):
        problems.add(f"optimizer.lr is {core.optimizer.get('lr')!r}", "set it to the peak learning rate")
    limit = core.model.get("max_sequence_length") or 0
    if sequence > limit:
        problems.add(
            f"training.sequence_length {sequence} exceeds model.max_sequence_length {limit}",
            "train on shorter sequences, or choose a model that takes longer ones",
        )
    for key, words in UNSUPPORTED.items():
        if shape.get(key):
            problems.add(
                f"this program does not build {words} (transformer.{key} is {shape[key]!r})",
                "emit megatron_args.txt and run Megatron-LM's own pretrain_gpt.py with it",
            )


def stages(problems: Problems, core: CoreConfig) -> None:
    """Layers must fill the pipeline's stages."""
    shape, layers = core.transformer, core.transformer.get("num_layers") or 0
    pp = core.parallel.get("pipeline_model_parallel_size") or 1
    virtual = core.parallel.get("virtual_pipeline_model_parallel_size") or 1
    if not any(shape.get(key) for key in UNEVEN_SPLITS) and layers % (pp * virtual):
        problems.add(
            f"transformer.num_layers {layers} is not a multiple of pp x virtual stages {pp * virtual}",
            "choose another pipeline size",
        )


def _pipeline(problems: Problems, plan: Plan, core: CoreConfig) -> None:
    stages(problems, core)
    shape = core.transformer
    pp = core.parallel.get("pipeline_model_parallel_size") or 1
    virtual = core.parallel.get("virtual_pipeline_model_parallel_size") or 1
    if virtual == 1:
        return
    if pp == 1:
        problems.add(f"{virtual} virtual pipeline stages need pp > 1", "remove them")
    if pp == 2 and not shape.get("overlap_p2p_comm"):
        problems.add(
            "an interleaved pipeline of 2 stages without overlap_p2p_comm trains on wrong gradients, silently",
            "set transformer.overlap_p2p_comm to true and transformer.batch_p2p_comm to false",
        )
    micro_batches = plan.strategy.gradient_accumulation_steps
    group = shape.get("microbatch_group_size_per_vp_stage") or pp
    if micro_batches < group or 0 < micro_batches % group < pp:
        problems.add(
            f"{micro_batches} micro-batches do not fill an interleaved pipeline in groups of {group}",
            f"use a multiple of {group}: another micro batch or global batch",
        )


def _names(problems: Problems, core: CoreConfig) -> None:
    for section in ("transformer", "optimizer"):
        for key, value in getattr(core, section).items():
            if key.endswith("_dtype") and value is not None and value not in DTYPE_NAMES:
                problems.add(f"{section}.{key} is {value!r}", f"use one of {', '.join(DTYPE_NAMES)}")
    choices = (
        ("transformer.activation_func", core.transformer.get("activation_func", "gelu"), ACTIVATION_NAMES),
        ("training.lr_decay_style", core.training.lr_decay_style, SCHEDULES),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            problems.add(f"{name} is {value!r}", f"use one of {', '.join(allowed)}")
