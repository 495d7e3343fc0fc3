"""From a row to what the planner is asked: model, machines, workload and strategy, or the reason why not.

What a row leaves open takes the framework's documented default; what changes memory or time much is said in
``assumed``:

=====================  ==============================================================================================
tp pp                  what dp leaves of the GPUs, where it is stated and one of them is blank
tp pp cp ep vpp        1, where the framework has no such degree or the run has one GPU; a blank tp or pp of a
                       model-parallel framework is a missing input; a blank cp, ep or vpp is 1
vpp                    a layer each in a dense model's recipe of NeMo and Megatron-Bridge, where layers divide; else 1
dispatch of experts    what the notes say (DeepEP); else DeepEP in recipes of Megatron-Bridge, an all-to-all elsewhere
overlap of tp          all by user buffers in those recipes with sequence parallelism; none in BigScience's fork of 2021
                       (no column); else Megatron's own, the backward pass
schedule (no column)   what the notes say (ZB-1p ...), and where embedding and head lie; else 1F1B, on the ends
zero_norm              3 for FSDP, and where zero_stage has + fsdp; 1 for NeMo and Megatron-Bridge recipes; else 0
sp                     on for NeMo and Megatron-Bridge recipes, and with experts (megatron-core requires it); else off
etp (no column)        what the notes say (etp1); else 1 for NeMo and Megatron-Bridge recipes, tp for Megatron-LM
recompute_norm         full for torchtune and LLaMA-Factory recipes, and in PyTorch where a run cannot have fitted
                       without (``plausible``); else none
micro_batch            from global_batch, dp and grad_accum; else 1
precision_norm         bf16, or fp16 where the card has no bf16
gpu_mem_gb             the strongest card of that name (a published run is known to have fitted), SXM on a tie
gpus_per_node          the usual node; where it does not divide the GPUs, the largest equal nodes below it
raw columns            precision, recompute, zero_stage and mem_kind serve where the normalised one is blank
vocab                  that of the registered model; else 51,200, GPT-2's padded
interconnect           the usual node of the card
flash_attn             off on cards before Ampere and in Megatron-DeepSpeed (an option there); else on
flash_attn, which      the first generation in llm-foundry, cuDNN's with Transformer Engine; else the framework's own
kernels (no column)    Megatron's for Megatron under FSDP or DeepSpeed; fused for NeMo AutoModel, Unsloth, JAX and
                       compiled runs; a fused loss for Composer and llm-foundry; else its own
weights (no column)    bf16 for torchtune and where precision is "bf16-true"; else its own
gradients (no column)  summed in bf16 in the benchmarks of NeMo and Megatron-Bridge and by InternEvo, in fp16 by
                       Megatron-LM in fp16; else the framework's own
loss under Megatron    fused in recipes of NeMo, Megatron-Bridge and Megatron-Core, or as the notes say; else not
overlap of dp          what the notes say; none for Megatron-LM and DeepSpeed's pipeline, gradients alone for
                       InternEvo; else all
sums of gradients      inside of their product; after it where DeepSpeed or InternEvo accumulate, and on cards before
                       Ampere, whose runs are older than the fused product
engine (no column)     DeepSpeed's pipeline for Megatron-DeepSpeed and GPT-NeoX, nanotron's, InternEvo's; else the
                       framework's own
dropout (no column)    on for a GPT under Megatron-LM without rotary positions (its default is 0.1); else off
=====================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from toolkit.cluster import ClusterSpec
from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec
from toolkit.strategy import OFFLOAD, RECOMPUTE, Strategy
from toolkit.validate import words
from toolkit.validate.degrees import degrees_of
from toolkit.validate.notes import notes_of, recompute_modules
from toolkit.validate.rows import Row
from toolkit.validate.shape import Models, shape_of
from toolkit.workload import Workload

GIB = 2.0**30
# columns that hold a measurement, and the subject that is not scored where one of them cannot be read
_SUBJECTS = {"step_time_s": "step_time", "implied_step_time_s": "step_time", "tokens_per_s_per_gpu": "step_time"} | {
    "peak_mem_gib": "peak_memory"
}
_FP8 = ("fp8", "mxfp8")
_OLD = ("volta", "turing")


class Machines(NamedTuple):
    """The machines of a row, and what was assumed about them."""

    cluster: ClusterSpec
    assumed: tuple[str, ...] = ()


class Lookups(NamedTuple):
    """What the registry knows. ``cluster(gpu, memory_gb, gpus, gpus_per_node)`` raises ToolkitError."""

    models: Models
    cluster: Callable[[str, float | None, int, int | None], Machines]


@dataclass(frozen=True)
class Job:
    """One run as the planner sees it. ``unscored`` says why the time or the memory of it is not compared."""

    row: Row
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    strategy: Strategy
    assumed: tuple[str, ...]
    unscored: dict[str, str]


class Skip(NamedTuple):
    """A row that is not scored, and why; framework and accelerator as far as they can be told."""

    row: Row
    reason: str
    framework: str
    accelerator: str


class _Unusable(Exception):
    """Ends the reading of one row; never leaves this module."""


def job_of(row: Row, lookups: Lookups) -> Job | Skip:
    """The job of a row, by its columns alone: no rule looks at ``id`` or ``source``."""
    passed_over = {*_SUBJECTS, *_not_needed(row)}
    fault = "; ".join(reason for column, reason in row.faults.items() if column not in passed_over)
    if fault:
        return skip(row, fault, lookups)
    try:
        return _job(row, lookups)
    except _Unusable as reason:
        return skip(row, str(reason), lookups)
    except ToolkitError as error:
        return skip(row, f"not modelled: {error.problems[0].message}", lookups)


def _not_needed(row: Row) -> set[str]:
    """Columns that only confirm what others state, so that a cell that cannot be read there loses nothing."""
    found = {"params_b", "tied"}
    if row.count("tp") and row.count("pp"):
        found.add("dp")
    if row.count("micro_batch") and row.count("global_batch"):
        found.add("grad_accum")
    return found


def skip(row: Row, reason: str, lookups: Lookups) -> Skip:
    """Leave a row out under the framework and accelerator that it would have been counted with."""
    try:
        accelerator = lookups.cluster(row.text("gpu"), row.number("gpu_mem_gb"), 1, None).cluster.accelerator.name
    except ToolkitError:
        accelerator = row.text("gpu")[:80]
    return Skip(row, reason, _framework(row), accelerator)


def _framework(row: Row) -> str:
    degrees = degrees_of(row)
    several = max(degrees.tp, degrees.pp, degrees.cp, degrees.ep) > 1
    return words.framework_of(row.text("framework"), _zero(row), several, row.count("n_gpus") or 1)


def _zero(row: Row) -> str:
    return words.zero_of(row.text("zero_norm"), row.text("zero_stage"))


def _job(row: Row, lookups: Lookups) -> Job:
    gpus, length = _stated(row, "n_gpus"), _stated(row, "seq_len")
    shape = shape_of(row, lookups.models)
    if shape.model is None:
        raise _Unusable(shape.reason)
    if notes_of(row).teacher:
        raise _Unusable("not modelled: distillation, a second model beside the trained one")
    assumed = list(shape.assumed)
    assumed += [f"as if blank: {column}" for column in row.faults if column not in _SUBJECTS]
    unscored = {_SUBJECTS[column]: reason for column, reason in row.faults.items() if column in _SUBJECTS}
    model, cluster = shape.model, _cluster(row, gpus, lookups, assumed)
    strategy = _strategy(row, model, gpus, cluster, assumed)
    strategy, batch = _batch(row, strategy, assumed)
    workload = _workload(row, model, cluster, strategy, length, batch, assumed)
    if _offload(row) is None:
        unscored["peak_memory"] = "not modelled: activations offloaded to the host"
    if not words.knows_optimizer(row.text("optimizer")):
        assumed.append(f"step of {workload.optimizer} in place of {row.text('optimizer')[:40]}")
    if words.has_other_states(row.text("optimizer")):
        unscored["peak_memory"] = f"not modelled: optimizer {row.text('optimizer')[:40]!r}"
    if words.has_shorter_samples(row.text("notes")):
        unscored["peak_memory"] = "missing: the length of what was run (samples are shorter than seq_len)"
        if row.count("global_batch") is None:
            unscored["step_time"] = unscored["peak_memory"]
    return Job(row, model, cluster, workload, strategy, tuple(assumed), unscored)


def _stated(row: Row, column: str) -> int:
    value = row.count(column)
    if value is None:
        raise _Unusable(f"missing: {column}")
    return value


def _cluster(row: Row, gpus: int, lookups: Lookups, assumed: list[str]) -> ClusterSpec:
    if not row.text("gpu"):
        raise _Unusable("missing: gpu")
    per_node = row.count("gpus_per_node")
    cluster, said = lookups.cluster(row.text("gpu"), row.number("gpu_mem_gb"), gpus, per_node)
    assumed += said
    network = words.per_gpu(row.text("interconnect"), per_node or cluster.gpus_per_node)
    link = cluster.inter_node
    if network.fabric:
        link = msgspec.structs.replace(link, name=network.fabric)
    if network.bytes_per_second:
        host = cluster.accelerator.host_link_bytes_per_second or network.bytes_per_second
        link = msgspec.structs.replace(link, bandwidth_bytes_per_second=min(network.bytes_per_second, host))
    return msgspec.structs.replace(cluster, inter_node=link)


def _strategy(row: Row, model: ModelSpec, gpus: int, cluster: ClusterSpec, assumed: list[str]) -> Strategy:
    degrees = degrees_of(row)
    tp, pp, cp, ep = degrees.tp, degrees.pp, degrees.cp, degrees.ep
    zero = _zero(row)
    if zero not in ("", "0", "1", "2", "3", "hsdp"):
        raise _Unusable(f"not modelled: zero_norm {zero[:20]!r}")
    name = row.text("framework")
    framework = _framework(row)
    recipes = words.has_recipe_defaults(name)
    blank = degrees.blank
    if blank and gpus > 1 and (framework == "megatron" or not (zero or words.is_data_parallel(name))):
        raise _Unusable(f"missing: {', '.join(blank)}")
    if gpus % (tp * pp * cp):
        raise _Unusable(f"contradiction: tp {tp} x pp {pp} x cp {cp} does not divide {gpus} GPUs")
    if degrees.contradiction:
        raise _Unusable(degrees.contradiction)
    assumed += degrees.assumed
    dp = gpus // (tp * pp * cp)
    if pp > model.num_hidden_layers:
        raise _Unusable(f"contradiction: {pp} pipeline stages for {model.num_hidden_layers} layers")
    if not model.is_moe:
        ep = 1
    etp = notes_of(row).expert_tensor_parallel or (tp if ep == 1 or not recipes else 1)
    if gpus % (etp * ep * pp):
        etp = 1
    if gpus % (ep * pp) or (ep > 1 and model.num_experts % ep):
        raise _Unusable(f"contradiction: ep {ep} with {model.num_experts} experts, pp {pp} and {gpus} GPUs")
    if not zero and framework != "ddp":
        stage = 3 if framework == "fsdp" else int(recipes)
        assumed.append(f"ZeRO stage {stage}")
    else:
        stage = 3 if zero == "hsdp" else int(zero or 0)
    if framework == "fsdp" and stage < 2:
        stage = 3
    shard = words.shard_of(row.text("zero_stage"), cluster.gpus_per_node) or dp
    if zero == "hsdp" and shard == dp:
        shard = min(cluster.gpus_per_node, dp)
    shard = shard if shard <= dp and dp % shard == 0 else dp
    virtual = _virtual_stages(row, model, pp, assumed)
    if virtual > -(-model.num_hidden_layers // pp):  # embedding and head may take the place of a layer each
        raise _Unusable(f"contradiction: pp {pp} x vpp {virtual} for {model.num_hidden_layers} layers")
    cut = _sequence_parallel(row, framework, tp, recipes or model.is_moe or notes_of(row).reduce_scatter, assumed)
    recompute, some = _recompute(row, framework, -(-model.num_hidden_layers // pp), assumed)
    return Strategy(
        framework=framework,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp,
        dp=dp,
        dp_shard=shard,
        virtual_pipeline_stages=virtual,
        zero_stage=stage,
        sequence_parallel=cut,
        recompute=recompute,
        recompute_layers=some,
        offload=_offload(row) or 0,
        schedule=notes_of(row).schedule,
        vocabulary=notes_of(row).vocabulary,
        tp_overlap=words.tensor_overlap_of(name, bool(cut)),
        dp_overlap=notes_of(row).data_overlap or words.data_overlap_of(name),
    )


def _virtual_stages(row: Row, model: ModelSpec, pp: int, assumed: list[str]) -> int:
    """Stated, else 1; a dense model's recipe in NeMo and Megatron-Bridge interleaves, as deep as layers allow."""
    if pp == 1:
        return 1
    stated, layers = row.count("vpp"), model.num_hidden_layers
    if stated is None and not model.is_moe and words.has_recipe_defaults(row.text("framework")) and layers % pp == 0:
        assumed.append(f"{layers // pp} virtual stages")
        return layers // pp
    return stated or 1


def _sequence_parallel(row: Row, framework: str, tp: int, usual: bool, assumed: list[str]) -> int:
    if tp == 1 or framework != "megatron":
        return 0
    if row.text("sp") in ("0", "1"):
        return int(row.text("sp"))
    assumed.append(f"sequence parallelism {'on' if usual else 'off'}")
    return int(usual)


def _recompute(row: Row, framework: str, layers: int, assumed: list[str]) -> tuple[int, int]:
    """Index into RECOMPUTE, and how many layers of a stage run again; 0 stands for all."""
    if row.text("recompute_norm") == "full" and "block" in row.text("recompute").casefold():
        some = words.recomputed_in_blocks(row.text("recompute"))
        if not some:
            assumed.append("recomputation of every layer, of a number in blocks")
        return RECOMPUTE.index("full"), some if some < layers else 0
    every = words.recomputed_layers(row.text("recompute"))
    if every > 1:
        return RECOMPUTE.index("full"), max(layers // every, 1)
    return _kind_of_recomputation(row, framework, assumed), 0


def _kind_of_recomputation(row: Row, framework: str, assumed: list[str]) -> int:
    stated = row.text("recompute_norm")
    if stated not in ("", *RECOMPUTE):
        raise _Unusable(f"not modelled: recompute_norm {stated[:20]!r}")
    if not stated and words.recomputes_by_default(row.text("framework")):
        assumed.append("recomputation of every layer")
        return RECOMPUTE.index("full")
    if not stated:
        assumed.append("no recomputation")
    modules = recompute_modules(row.text("recompute")).split("+")
    if stated == "selective" and framework != "megatron" and not {"core_attn", "mlp", "moe"} & set(modules):
        return 0  # parts that are cheap to run again
    return RECOMPUTE.index(stated or "none")


def _offload(row: Row) -> int | None:
    """Index into OFFLOAD; None for activations, which no plan offloads (their copies are meant to hide)."""
    text = row.text("offload").casefold()
    if text in ("", "none"):
        return OFFLOAD.index("none")
    if "param" in text:
        return OFFLOAD.index("optimizer+parameters")
    return OFFLOAD.index("optimizer") if "optim" in text else None


def _batch(row: Row, strategy: Strategy, assumed: list[str]) -> tuple[Strategy, int]:
    """Micro batch, accumulation and global batch: two of them say the third."""
    dp, batch = strategy.dp, row.count("global_batch")
    micro, times = row.count("micro_batch"), row.count("grad_accum")
    if batch is None:
        if micro is None:
            raise _Unusable("missing: global_batch and micro_batch")
        batch = micro * dp * (times or 1)
        assumed.append(f"global batch {batch}")
    if micro is None:
        micro = max(batch // (dp * times), 1) if times else 1
        assumed.append(f"micro batch {micro}")
    if batch % (micro * dp):
        raise _Unusable(f"contradiction: global batch {batch} is no multiple of micro batch {micro} x dp {dp}")
    changed = msgspec.structs.replace(
        strategy, micro_batch_size=micro, gradient_accumulation_steps=batch // (micro * dp)
    )
    return changed, batch


def _workload(
    row: Row, model: ModelSpec, cluster: ClusterSpec, strategy: Strategy, length: int, batch: int, assumed: list[str]
) -> Workload:
    card = cluster.accelerator
    stated = row.text("precision_norm")
    if not stated:
        precision = "bf16" if card.supports_bf16 else "fp16"
        assumed.append(precision)
    elif stated in _FP8:
        precision = "fp8"
    elif stated == "int4-base":  # QLoRA: the base is packed, what is computed is not
        precision = "bf16"
    else:
        precision = stated
    if precision not in ("bf16", "fp16", "fp32", "fp8"):
        raise _Unusable(f"not modelled: precision {stated[:20]}")
    if precision not in card.peak_flop_per_second:
        raise _Unusable(f"not modelled: {card.name} has no {precision} matrix products")
    name, notes = row.text("framework").casefold(), notes_of(row)
    flash = row.text("flash_attn").casefold()
    if not flash:
        old = card.architecture in _OLD or ("megatron" in name and "deepspeed" in name)
        eager = old or (notes.unfused and strategy.framework == "megatron")
    else:
        eager = flash in ("0", "unfused", "eager")
    megatron_lm = strategy.framework == "megatron" and "megatron" in name and not words.has_recipe_defaults(name)
    optimizer = row.text("optimizer").casefold()
    return Workload(
        sequence_length=length,
        global_batch_size=batch,
        precision=precision,
        method=row.text("task") if row.text("task") in ("lora", "qlora") else "full",
        optimizer=words.optimizer_of(optimizer),
        attention="eager" if eager else "flash",
        flash_generation=words.flash_generation_of(name, flash),
        gradient_accumulation_dtype=words.sums_of(name, strategy.framework, precision, optimizer),
        dropout=megatron_lm and not model.gated_mlp and notes.positions not in ("rope", "none"),
        launch_blocking=notes.launch_blocking,
        fused_cross_entropy=strategy.framework == "megatron" and (words.fuses_loss(name) or notes.fused_loss),
        fused_accumulation=card.architecture not in _OLD and words.fuses_accumulation(name),
        expert_dispatch=notes.expert_dispatch or words.expert_dispatch_of(name),
        expert_overlap=notes.expert_overlap,
        cuda_graphs=notes.cuda_graphs,
        kernels=words.kernels_of(name, strategy.framework, row.text("compile") == "1"),
        logged_losses=words.logged_losses_of(name),
        weights=words.weights_of(
            name, strategy.framework, row.text("precision"), precision, f"{row.text('notes')} {optimizer}"
        ),
        fused_loss=words.fused_loss_of(name),
        engine=words.engine_of(name, strategy.framework),
        recompute_modules=recompute_modules(row.text("recompute")),
    )
