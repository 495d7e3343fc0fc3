"""WholeRun: what all steps of a plan's contract take in time, GPU-hours and money, failures included."""

from __future__ import annotations

import msgspec

from toolkit.plan import Plan
from toolkit.recipe import planned_steps, sequences_per_step


class WholeRun(msgspec.Struct, frozen=True, kw_only=True):
    """All steps of the contract at the estimated seconds a step; ``expected_*`` with failures, restarts and saving.

    A cost is in the currency of the cluster's price, and None where no price is known. ``expected_*``,
    ``interruptions`` and ``goodput`` are None where nothing is known of failures (CPU machines), or where the run would
    never end.
    """

    steps: int
    tokens: float
    seconds: float
    gpu_hours: float
    cost: float | None
    cost_per_billion_tokens: float | None
    expected_seconds: float | None = None
    expected_gpu_hours: float | None = None
    expected_cost: float | None = None
    interruptions: float | None = None
    goodput: float | None = None


def gpu_hours_per_billion_tokens(plan: Plan) -> float:
    """GPU-hours of 1e9 tokens at the estimated seconds of a step, without interruption; also of a run of no length."""
    tokens = 1.0 * plan.workload.sequences_per_step * plan.workload.sequence_length
    return plan.cluster.num_gpus * plan.step.seconds / 3600.0 / tokens * 1e9


def whole_run(plan: Plan) -> WholeRun | None:
    """Steps x seconds, and GPU-hours x price per hour; None where the contract does not say how long it is."""
    contract, cluster, expected = plan.contract, plan.cluster, plan.resilience
    steps = planned_steps(contract)
    if not steps:
        return None
    price = cluster.accelerator.price_per_hour
    tokens = 1.0 * steps * sequences_per_step(contract) * contract.sequence_length
    seconds = steps * plan.step.seconds
    gpu_hours = seconds / 3600.0 * cluster.num_gpus
    run = WholeRun(
        steps=steps,
        tokens=tokens,
        seconds=seconds,
        gpu_hours=gpu_hours,
        cost=gpu_hours * price if price else None,
        cost_per_billion_tokens=gpu_hours * price / tokens * 1e9 if price else None,
    )
    if expected is None or expected.run_seconds is None:
        return run
    longer = expected.run_seconds / 3600.0 * cluster.num_gpus
    return msgspec.structs.replace(
        run,
        expected_seconds=expected.run_seconds,
        expected_gpu_hours=longer,
        expected_cost=longer * price if price else None,
        interruptions=expected.interruptions,
        goodput=expected.goodput,
    )
