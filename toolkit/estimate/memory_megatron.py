"""Equation M8: states of megatron-core's DDP and (distributed) optimizer."""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.estimate.precision import eight_bit_weights, value_bytes
from toolkit.estimate.states import Share, States
from toolkit.model import ModelSpec
from toolkit.numeric import Number, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Precision, Workload


@equation("M8", "b*(P/n + P_e/n_e)")
def mixed_precision_bytes(
    dense: Number, experts: Number, bytes_per_parameter: float, dense_ranks: Number, expert_ranks: Number
) -> Number:
    """One kind of state: dense parameters over ``n`` ranks, routed experts over ``n_e``.

    With the distributed optimizer the master copy and Adam states are divided by ``n = dp_shard cp`` (experts by the
    expert data-parallel size ``dp_shard cp t / (ep t_e)``): 6 + 12/n bytes a parameter in bf16, 18 without it.
    Source: ``megatron/training/theoretical_memory_usage.py`` of Megatron-LM; a dry run of megatron-core 0.16.1 gives
    12.000 and 18.000 bytes.
    """
    return bytes_per_parameter * (1.0 * dense / dense_ranks + 1.0 * experts / expert_ranks)


def sharing_ranks(strategy: Strategy) -> tuple[Number, Number]:
    """Ranks that divide the optimizer states of dense parameters, and of routed experts.

    Several instances of the distributed optimizer (``--num-distributed-optimizer-instances``; InternEvo's ``zero1`` of
    a size) divide within ``dp_shard`` of the ``dp`` ranks each.
    """
    replicas = 1.0 * strategy.dp_shard * strategy.cp
    expert_replicas = maximum(replicas * strategy.tp / (1.0 * strategy.ep * strategy.etp), 1.0)
    sharded = strategy.zero_stage > 0
    return where(sharded, replicas, 1.0), where(sharded, expert_replicas, 1.0)


def megatron_states(
    model: ModelSpec, workload: Workload, strategy: Strategy, share: Share, precision: Precision
) -> States:
    """Parameters and float32 gradient buffers on every rank; optimizer states divided where asked."""
    over, experts_over = sharing_ranks(strategy)
    everything = share.trained + share.experts
    # fp8: transformer-engine keeps an 8-bit copy of each matrix and its transpose from one micro batch to the next;
    # with 8-bit weights these two are all there is
    copied = workload.precision == "fp8" and not eight_bit_weights(workload, strategy.framework)
    copies = 2.0 * (everything - share.root) if copied else 0.0
    states = precision.master + precision.optimizer_states
    # activations in transit between stages: one received, one sent
    tokens = 1.0 * strategy.micro_batch_size * workload.sequence_length / strategy.cp
    width = value_bytes(workload) * model.hidden_size
    sigma = where(strategy.sequence_parallel > 0, strategy.tp, 1)
    transit = where(strategy.pp > 1, 2.0, 0.0) * tokens * width / sigma
    # half gradients are copied to float32, shard by shard, for the step
    step = 0.0 if precision.gradients == 4.0 else 4.0
    return States(
        parameters=mixed_precision_bytes(share.trained, share.experts, precision.parameters, 1.0, 1.0) + copies,
        optimizer=mixed_precision_bytes(share.trained, share.experts, states, over, experts_over),
        gradients=mixed_precision_bytes(share.trained, share.experts, precision.gradients, 1.0, 1.0),
        buffers=transit,
        accumulated=0.0,
        final=0.0,
        backward=0.0,
        step=mixed_precision_bytes(share.trained, share.experts, step, over, experts_over),
        # the float32 gradient of the token table or the head is larger than any activation that was freed
        block=step * minimum(share.largest / strategy.tp, share.root) / over,
    )
