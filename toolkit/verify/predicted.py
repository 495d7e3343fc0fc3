"""What the estimate says of the ranks that a dry run counts, in the parts that can be compared.

==============  ============================================================================================
part            estimate                                                          counted
==============  ============================================================================================
parameters      the working copy that is alive all the time                      storages that hold it
gradients       alive from one micro batch to the next (with a single micro       storages between two micro
                batch: when its backward pass ends)                               batches
optimizer       master copy and moments                                           storages after one step
reference       of preference training (DPO): the frozen model, or a rank's       storages that hold it
                share of it
peak            the whole estimate without its framework part (context,           most bytes alive at once in
                communicators, workspaces, fragmentation)                         a whole step
host            what one rank offloads, without what the pinned allocator        storages that the engine pins,
                rounds up                                                         and its optimizer's
==============  ============================================================================================

The other parts of a MemoryEstimate (activations, logits, buffers, temporaries) say what each adds to the peak, so
only their sum can be counted: it is in the peak.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from toolkit.calibration import Calibration
from toolkit.estimate.host import offloaded_bytes
from toolkit.estimate.layout import Stage, second_stage, stages, tables
from toolkit.estimate.memory import STATES, stage_memory, stage_share, with_reference
from toolkit.estimate.precision import state_precision
from toolkit.estimate.preference import in_sequences, is_preference, reference_memory
from toolkit.plan import Plan

PARTS = ("parameters", "gradients", "optimizer", "reference", "peak", "host")


class Rank(NamedTuple):
    """One kind of rank: what it is called, one rank of that kind, and what is predicted for it."""

    kind: str
    rank: int
    predicted_bytes: dict[str, float]


def ranks(plan: Plan, calibration: Calibration) -> list[Rank]:
    """The kinds of ranks of a plan: pipeline stages for Megatron, else one rank for all."""
    s = plan.strategy
    table = tables(plan.model, plan.workload, s.framework)
    found = stages(plan.model, s, table)
    if s.framework != "megatron" or s.pp == 1:
        # ZeRO-1 and 2 keep gradients by which tensors reach into a rank's share: at stage 2 the dry run looks for the
        # fullest; at stage 1 the rank that owns the embedding has most when its backward pass ends
        kind = "fullest rank" if s.framework == "deepspeed" and s.zero_stage == 2 else "every rank"
        if s.framework == "deepspeed" and s.zero_stage == 1:
            kind = "embedding's rank"
        return [Rank(kind, 0, predicted(plan, calibration, found[0]))]
    per_stage = plan.cluster.num_gpus // s.pp
    middle = [("second stage", 1, second_stage(s, table))] if s.pp > 2 else []
    chosen = [("first stage", 0, found[0]), *middle, ("last stage", s.pp - 1, found[1])]
    return [Rank(kind, index * per_stage, predicted(plan, calibration, stage)) for kind, index, stage in chosen]


def predicted(plan: Plan, calibration: Calibration, stage: Stage) -> dict[str, float]:
    """Bytes by part on one rank of a stage."""
    model = plan.model
    # the kernel that adds to a gradient inside of its product comes with Apex, not with a dry run
    workload, s = in_sequences(msgspec.structs.replace(plan.workload, fused_accumulation=False), plan.strategy)
    table = tables(model, workload, s.framework)
    share = stage_share(model, s, table, stage)
    states = STATES[s.framework](model, workload, s, share, state_precision(workload, s.framework))
    estimate = stage_memory(model, plan.cluster, workload, s, calibration, table, stage)
    once = states.final if s.framework == "megatron" else states.handed
    kept = states.accumulated if s.gradient_accumulation_steps > 1 else once
    host = {"host": offloaded_bytes(model, workload, s)} if s.offload else {}
    apart, reference = {}, 0.0
    if is_preference(workload):
        reference = float(with_reference(model, workload, s, calibration, table, estimate))
        if workload.method == "full":
            apart = {"reference": float(reference_memory(model, workload, s, table)[0])}
    return {
        "parameters": float(states.parameters),
        "gradients": float(states.gradients + kept),
        "optimizer": float(states.optimizer),
        "peak": float(estimate.total_bytes - estimate.framework_bytes + reference),
        **apart,
        **host,
    }
