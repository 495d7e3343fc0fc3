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
from toolkit.strategy import Strategy
from toolkit.validate.networks import per_gpu
from toolkit.validate.notes import has_shorter_samples, notes_of
from toolkit.validate.rows import Row, Unusable
from toolkit.validate.shape import Models, shape_of
from toolkit.validate.states import has_other_states, knows_optimizer
from toolkit.validate.strategies import framework_of_row, offload_of, strategy_of, with_batch
from toolkit.validate.workloads import workload_of
from toolkit.workload import Workload

GIB = 2.0**30
# columns that hold a measurement, and the subject that is not scored where one of them cannot be read
_SUBJECTS = {"step_time_s": "step_time", "implied_step_time_s": "step_time", "tokens_per_s_per_gpu": "step_time"} | {
    "peak_mem_gib": "peak_memory"
}


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


def job_of(row: Row, lookups: Lookups) -> Job | Skip:
    """The job of a row, by its columns alone: no rule looks at ``id`` or ``source``."""
    passed_over = {*_SUBJECTS, *_not_needed(row)}
    fault = "; ".join(reason for column, reason in row.faults.items() if column not in passed_over)
    if fault:
        return skip(row, fault, lookups)
    try:
        return _job(row, lookups)
    except Unusable as reason:
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
    return Skip(row, reason, framework_of_row(row), accelerator)


def _job(row: Row, lookups: Lookups) -> Job:
    gpus, length = _stated(row, "n_gpus"), _stated(row, "seq_len")
    shape = shape_of(row, lookups.models)
    if shape.model is None:
        raise Unusable(shape.reason)
    if notes_of(row).teacher:
        raise Unusable("not modelled: distillation, a second model beside the trained one")
    assumed = list(shape.assumed)
    assumed += [f"as if blank: {column}" for column in row.faults if column not in _SUBJECTS]
    unscored = {_SUBJECTS[column]: reason for column, reason in row.faults.items() if column in _SUBJECTS}
    model, cluster = shape.model, _cluster(row, gpus, lookups, assumed)
    strategy = strategy_of(row, model, gpus, cluster, assumed)
    strategy, batch = with_batch(row, strategy, assumed)
    workload = workload_of(row, model, cluster, strategy, length, batch, assumed)
    if offload_of(row) is None:
        unscored["peak_memory"] = "not modelled: activations offloaded to the host"
    if not knows_optimizer(row.text("optimizer")):
        assumed.append(f"step of {workload.optimizer} in place of {row.text('optimizer')[:40]}")
    if has_other_states(row.text("optimizer")):
        unscored["peak_memory"] = f"not modelled: optimizer {row.text('optimizer')[:40]!r}"
    if has_shorter_samples(row.text("notes")):
        unscored["peak_memory"] = "missing: the length of what was run (samples are shorter than seq_len)"
        if row.count("global_batch") is None:
            unscored["step_time"] = unscored["peak_memory"]
    return Job(row, model, cluster, workload, strategy, tuple(assumed), unscored)


def _stated(row: Row, column: str) -> int:
    value = row.count(column)
    if value is None:
        raise Unusable(f"missing: {column}")
    return value


def _cluster(row: Row, gpus: int, lookups: Lookups, assumed: list[str]) -> ClusterSpec:
    if not row.text("gpu"):
        raise Unusable("missing: gpu")
    per_node = row.count("gpus_per_node")
    cluster, said = lookups.cluster(row.text("gpu"), row.number("gpu_mem_gb"), gpus, per_node)
    assumed += said
    network = per_gpu(row.text("interconnect"), per_node or cluster.gpus_per_node)
    link = cluster.inter_node
    if network.fabric:
        link = msgspec.structs.replace(link, name=network.fabric)
    if network.bytes_per_second:
        host = cluster.accelerator.host_link_bytes_per_second or network.bytes_per_second
        link = msgspec.structs.replace(link, bandwidth_bytes_per_second=min(network.bytes_per_second, host))
    return msgspec.structs.replace(cluster, inter_node=link)
