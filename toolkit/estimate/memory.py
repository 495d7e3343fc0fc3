"""Peak memory per GPU: states, activations and buffers of the fullest pipeline stage.

Three moments can be the peak; a byte that leaves before another one comes is not counted twice:

- *the backward pass begins*: all activations are alive, with the logits or with the working set of the first
  layer whose backward runs, whichever is larger;
- *it ends*: activations are gone, and transient gradients are whole. Gradients that live across micro batches
  are added to the first moment; with a single micro batch they only count where they outgrow the activations;
- *the optimizer step*: its temporaries count where they outgrow what the backward pass needed.

So a part says what it adds to the peak. Left out: evaluation, checkpoint saving, NVMe swap buffers.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.equation import equation
from toolkit.estimate.activations import Activations, activations
from toolkit.estimate.framework_memory import outside_model
from toolkit.estimate.layout import Stage, Tables, padded_vocabulary, stages, tables
from toolkit.estimate.memory_deepspeed import deepspeed_states
from toolkit.estimate.memory_megatron import megatron_states
from toolkit.estimate.memory_pipeline_engine import engine_bytes, engine_states, under_engine
from toolkit.estimate.memory_torch import ddp_states, fsdp_states
from toolkit.estimate.precision import state_precision
from toolkit.estimate.preference import (
    in_sequences,
    is_preference,
    reference_excess,
    reference_gathered,
    reference_memory,
)
from toolkit.estimate.states import Share, States
from toolkit.estimates import MemoryEstimate
from toolkit.model import ModelSpec
from toolkit.numeric import Number, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload

STATES = {"ddp": ddp_states, "deepspeed": deepspeed_states, "fsdp": fsdp_states, "megatron": megatron_states}


@equation("M14", "max([m>1]*G_a, G_f + W - (A + max(L, W)))")
def gradients_beyond_activations(
    accumulated: Number, final: Number, start: Number, end: Number, micro_batches: Number
) -> Number:
    """Transient gradients at the peak: those kept from earlier micro batches, or the excess when backward ends.

    Source: the lifetime of tensors; counted peaks of DeepSpeed 0.19.8 at stage 1 and 2.
    """
    return maximum(where(micro_batches > 1, accumulated, 0.0), final + end - start)


@equation("M15", "max(step - (A + L + G), 0)")
def step_excess(step: Number, backward: Number) -> Number:
    """What the optimizer step needs beyond the room that activations, logits and gradients leave.

    Source: the lifetime of tensors: activations are gone when the step begins.
    """
    return maximum(step - backward, 0.0)


def memory(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy, calibration: Calibration
) -> MemoryEstimate:
    """Bytes per GPU by component, on the pipeline stage with the largest total. Scalars or columns."""
    workload, strategy = in_sequences(workload, strategy)
    table = tables(model, workload, strategy.framework)
    found = (
        stage_memory(model, cluster, workload, strategy, calibration, table, stage)
        for stage in stages(model, strategy, table)
    )
    fullest = functools.reduce(_fuller, found)
    if not is_preference(workload):
        return fullest
    reference = with_reference(model, workload, strategy, calibration, table, fullest)
    return msgspec.structs.replace(fullest, parameters_bytes=fullest.parameters_bytes + reference)


def with_reference(
    model: ModelSpec,
    workload: Workload,
    strategy: Strategy,
    calibration: Calibration,
    table: Tables,
    alone: MemoryEstimate,
) -> Number:
    """What a reference adds to an estimate of the policy ``alone``: its share, and what its pass needs beyond the peak.

    ``workload`` and ``strategy`` have their batches in sequences.
    """
    stage = list(stages(model, strategy, table))[-1]
    states = STATES[strategy.framework](
        model,
        workload,
        strategy,
        stage_share(model, strategy, table, stage),
        state_precision(workload, strategy.framework),
    )
    policy = activations(model, workload, strategy, table, stage, calibration["expert_peak_load"])
    accumulated = where(strategy.gradient_accumulation_steps > 1, states.accumulated, 0.0)
    held = states.parameters + states.casts + states.optimizer + states.gradients + accumulated
    excess = reference_excess(
        held + states.buffers + states.loss_backward,
        policy.kept + policy.gradients,  # and what a layer of the reference works on, as its backward pass would
        reference_gathered(model, workload, strategy, table),
        alone.total_bytes - alone.framework_bytes,
    )
    return reference_memory(model, workload, strategy, table)[0] + excess


def stage_memory(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    strategy: Strategy,
    calibration: Calibration,
    table: Tables,
    stage: Stage,
) -> MemoryEstimate:
    """Peak bytes of one pipeline stage."""
    share = stage_share(model, strategy, table, stage)
    matrix_share = 1.0 - (table.counted.embedding + table.counted.head) / table.counted.total
    precision = state_precision(workload, strategy.framework, matrix_share)
    rules = engine_states if under_engine(workload, strategy) else STATES[strategy.framework]
    states = rules(model, workload, strategy, share, precision)
    kept = activations(model, workload, strategy, table, stage, calibration["expert_peak_load"])
    engine = engine_bytes(workload, strategy, calibration)
    return _peak(cluster, strategy, calibration, states, kept, engine)


def stage_share(model: ModelSpec, strategy: Strategy, table: Tables, stage: Stage) -> Share:
    """Parameters of a stage on one rank of the tensor and expert axes."""
    counted, megatron = table.counted, table.megatron
    rows = padded_vocabulary(model.vocab_size, strategy.framework, strategy.tp)
    vocabulary = 1.0 * rows / model.vocab_size
    # Megatron cuts the token table, DeepSpeed's tensor parallelism leaves it whole; both cut the head
    embedding = stage.embedding * counted.embedding * vocabulary / (strategy.tp if megatron else 1)
    head = stage.head * counted.head * vocabulary / strategy.tp
    if model.tie_word_embeddings:  # the last of several stages holds a copy
        copy = maximum(stage.head - stage.embedding, 0.0)
        head = head + copy * counted.embedding * vocabulary / strategy.tp
    ends = stage.embedding * counted.positions + stage.head * counted.final_norm + sum(counted.other.values())
    root = embedding + head + ends
    dense = stage.sharded / strategy.tp + stage.replicated + root
    experts = stage.routed / (1.0 * strategy.ep * strategy.etp)
    trained_all = table.adapters == 0
    return Share(
        trained=dense if trained_all else 1.0 * table.adapters,
        experts=experts if trained_all else 0.0,
        frozen=0.0 if trained_all else dense + experts,
        packed=table.quantised / strategy.tp,
        root=root,
        layer=1.0 * counted.largest_layer / strategy.tp,
        largest=1.0 * counted.largest_tensor,
        small=table.small,
        tail=head + stage.head * counted.final_norm + (embedding if model.tie_word_embeddings else 0.0),
        tensors=table.tensors,
    )


def _peak(
    cluster: ClusterSpec,
    strategy: Strategy,
    calibration: Calibration,
    states: States,
    kept: Activations,
    engine: Number,
) -> MemoryEstimate:
    end = kept.gradients + states.backward
    at_loss = maximum(states.loss, kept.loss_workspace + states.loss_backward)
    at_layer = maximum(kept.recomputed + end, states.head) - kept.logits
    beyond_logits = maximum(at_loss, at_layer)
    start = kept.kept + kept.logits + beyond_logits + states.casts
    gradients = gradients_beyond_activations(
        states.accumulated, states.final, start, end, strategy.gradient_accumulation_steps
    )
    temporaries = step_excess(states.step, start + gradients)
    communicating = where(at_loss >= at_layer, states.loss, maximum(states.backward, states.head))
    gathering = minimum(communicating, beyond_logits)
    # single large tensors leave no odd ends
    dynamic = start + gradients + maximum(temporaries - states.block, 0.0)
    anew = engine + maximum(states.block - temporaries, 0.0)
    return MemoryEstimate(
        parameters_bytes=states.parameters + states.casts,
        gradients_bytes=states.gradients + gradients,
        optimizer_bytes=states.optimizer,
        activations_bytes=kept.kept + (beyond_logits - gathering),
        logits_bytes=kept.logits,
        communication_buffers_bytes=states.buffers + gathering,
        optimizer_temporaries_bytes=temporaries,
        framework_bytes=outside_model(cluster.accelerator, strategy, calibration, dynamic, anew),
    )


def _fuller(left: MemoryEstimate, right: MemoryEstimate) -> MemoryEstimate:
    """Component by component from whichever has the larger total."""
    take_left = left.total_bytes >= right.total_bytes
    values: dict[str, Any] = {
        name: where(take_left, getattr(left, name), getattr(right, name)) for name in MemoryEstimate.__struct_fields__
    }
    return MemoryEstimate(**values)
