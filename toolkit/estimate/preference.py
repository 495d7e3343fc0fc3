"""Equations A27, M24, M27, T30 and F10: what preference training (DPO) costs beside training on as many sequences.

A pair is two sequences that go through the model together, so everything that is counted by micro batch and global
batch is that of twice as many sequences: :func:`in_sequences` says it once, for every estimate. The rest is the frozen
reference model: its weights, unless adapters are trained (then it is the model without them), one forward pass more of
every sequence, and where parameters are sharded one gather more; and a head that computes log probabilities tile by
tile, without whole logits. As trl 1.16.0 does it. Of A27, M24, M27 and T30 no run was measured on a GPU: assumed.

Left out: log probabilities of the reference that are computed before training; the passes of losses over few numbers.
"""

from __future__ import annotations

import msgspec

from toolkit import deepspeed_defaults as defaults
from toolkit.equation import equation
from toolkit.estimate.layout import Tables
from toolkit.estimate.memory_deepspeed import live_bytes
from toolkit.estimate.precision import state_precision, value_bytes
from toolkit.model import ModelSpec
from toolkit.numeric import Number, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload

TILE_TOKENS, TILE_VOCABULARY = 4096.0, 32768.0  # trl 1.16.0 kernels/chunked_logprob.py, trainer/utils.py
TILE_PASSES, REFERENCE_PASSES = (
    5.0,
    2.0,
)  # over the tiles: written, read; written again, read and written; the reference


def is_preference(workload: Workload) -> bool:
    """Whether the workload trains on pairs."""
    return workload.objective == "dpo"


def in_sequences(workload: Workload, strategy: Strategy) -> tuple[Workload, Strategy]:
    """Both with their batches in sequences, where they are in pairs."""
    if not is_preference(workload):
        return workload, strategy
    return (
        msgspec.structs.replace(workload, global_batch_size=2 * workload.global_batch_size),
        msgspec.structs.replace(strategy, micro_batch_size=2 * strategy.micro_batch_size),
    )


@equation("A27", "b*c_V*min(T, c_T) + (4 + b)*T*h + head*(4 + b_W)*V*h")
def tiled_logits_bytes(
    tokens: Number, vocabulary: Number, hidden_size: int, bytes_per_value: float, head: float, copied: float
) -> Number:
    """Log probabilities by tiles of ``c_T`` tokens and ``c_V`` words: one tile, and in the backward pass the float32
    gradients of the last hidden state and, where it is trained (``head`` 1), of the head, and both in their own type:
    ``b_W`` bytes, 0 where the head itself is float32.

    Source: trl 1.16.0 ``kernels/chunked_logprob.py``; only tokens of answers are counted there, all of them here.
    """
    sums = (4.0 + bytes_per_value) * tokens * hidden_size + head * (4.0 + copied) * vocabulary * hidden_size
    return bytes_per_value * TILE_VOCABULARY * minimum(1.0 * tokens, TILE_TOKENS) + sums


@equation("M24", "b*P/n + gathered")
def reference_bytes(parameters: float, bytes_per_value: float, ranks: Number, gathered: Number) -> Number:
    """The frozen reference: whole, or divided over the ``n`` ranks that share a copy, and what of it stays gathered.

    Source: trl 1.16.0 ``models/utils.py`` (prepare_deepspeed: stage 3 as the policy, else a whole copy; prepare_fsdp).
    """
    return parameters * bytes_per_value / ranks + gathered


@equation("M27", "max(states + kept + gathered - peak, 0)")
def reference_excess(states: Number, kept: Number, gathered: Number, peak: Number) -> Number:
    """What the reference's forward pass needs beyond the step's peak: all activations of the policy are kept by then,
    and nothing of its loss and backward pass is there yet.

    Source: trl 1.16.0 ``trainer/dpo_trainer.py`` (the reference after the policy); a dry run of it.
    """
    return maximum(states + kept + gathered - peak, 0.0)


@equation("T30", "m*(l*t + q)")
def reference_seconds(micro_batches: Number, layers: Number, forward_seconds: Number, head: Number) -> Number:
    """The reference's forward pass of ``m`` micro batches through ``l`` layers and the head, ``q`` seconds of it.

    Source: trl 1.16.0 ``trainer/dpo_trainer.py``: after the policy's forward pass, nothing beside it.
    """
    return micro_batches * (layers * forward_seconds + head)


@equation("F10", "F_training + F_forward")
def preference_flop(training: float, forward: float) -> float:
    """Model FLOP of a token of a pair: it is learnt, and goes once through the reference.

    Source: arXiv 2305.18290, equation 7.
    """
    return training + forward


def reference_memory(model: ModelSpec, workload: Workload, strategy: Strategy, table: Tables) -> tuple[Number, Number]:
    """Bytes of the reference between its passes, on a GPU and on the host of a rank, where DeepSpeed offloads it."""
    if not is_preference(workload) or workload.method != "full":
        return 0.0, 0.0
    parameters, each = 1.0 * table.counted.total, state_precision(workload, strategy.framework).parameters
    if strategy.framework == "fsdp":
        # at stage 2 its one unit is not sharded again after its forward pass
        kept = where(strategy.zero_stage == 3, 0.0, parameters * value_bytes(workload))
        return reference_bytes(parameters, each, 1.0 * strategy.dp_shard * strategy.cp, kept), 0.0
    if strategy.framework != "deepspeed":
        return reference_bytes(parameters, each, 1.0, 0.0), 0.0
    share = reference_bytes(
        parameters, each, where(strategy.zero_stage == 3, 1.0 * strategy.dp * strategy.cp, 1.0), 0.0
    )
    return where(strategy.offload == 2, 0.0, share), where(strategy.offload == 2, share, 0.0)


def reference_gathered(model: ModelSpec, workload: Workload, strategy: Strategy, table: Tables) -> Number:
    """Bytes that the forward pass of a sharded reference gathers.

    prepare_fsdp makes the whole of it one unit: one buffer for all parameters, and beside it the parameters that are
    copied out of it. DeepSpeed keeps at most ``stage3_max_live_parameters``.
    """
    if not is_preference(workload) or workload.method != "full":
        return 0.0
    parameters = 1.0 * table.counted.total
    if strategy.framework == "fsdp":
        copies = where(strategy.zero_stage == 3, 2.0, 1.0)  # at stage 2 the parameters themselves are there already
        return where(strategy.dp_shard * strategy.cp > 1, copies * value_bytes(workload) * parameters, 0.0)
    if strategy.framework != "deepspeed":
        return 0.0
    each = state_precision(workload, strategy.framework).parameters
    prefetch = float(defaults.prefetch_bucket_elements(model.hidden_size))
    live = live_bytes(
        parameters, each, float(defaults.MAX_LIVE_PARAMETERS), prefetch, 1.0 * table.counted.largest_tensor
    )
    return where(strategy.zero_stage == 3, live, 0.0)
