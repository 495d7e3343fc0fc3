"""A plan for many devices as a plan for one: the same experiment, everything that is split whole again."""

from __future__ import annotations

import msgspec

from toolkit.calibration import Calibration
from toolkit.errors import NoFeasiblePlan
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.verdict import verdict
from toolkit.estimates import VERDICTS
from toolkit.plan import Plan
from toolkit.strategy import describe


def on_one_device(plan: Plan, calibration: Calibration) -> Plan:
    """The plan with degrees of 1 and as much accumulation as keeps the global batch; one for one device as it is.

    Raises NoFeasiblePlan where that does not fit into the device's memory.
    """
    if plan.cluster.num_gpus > 1:
        plan = msgspec.structs.replace(
            plan,
            cluster=msgspec.structs.replace(plan.cluster, nodes=1, gpus_per_node=1),
            strategy=msgspec.structs.replace(
                plan.strategy,
                **dict.fromkeys(("tp", "pp", "cp", "ep", "etp", "dp", "dp_shard", "virtual_pipeline_stages", "hpz"), 1),
                sequence_parallel=0,
                gradient_accumulation_steps=plan.contract.global_batch_size // plan.strategy.micro_batch_size,
            ),
        )
    found = evaluate(plan.model, plan.cluster, plan.workload, plan.strategy, calibration)
    limit = plan.cluster.accelerator.memory_bytes
    word = VERDICTS[int(verdict(found.memory.total_bytes, limit))]
    if word == "no":
        raise NoFeasiblePlan(
            f"{plan.name} needs {found.memory.total_bytes / 2**30:.1f} GiB on one {plan.cluster.accelerator.name}"
            f" ({describe(plan.strategy)}), which has {limit / 2**30:.1f}",
            remedy="profile a smaller recipe: its calibration serves the larger one too",
        )
    return msgspec.structs.replace(
        plan,
        memory=found.memory,
        host_memory=found.host_memory,
        communication=found.communication,
        step=found.step,
        step_interval80=None,
        memory_interval80=None,
        verdict=word,
        memory_limit_bytes=limit,
        calibration=calibration.reference,
    )
