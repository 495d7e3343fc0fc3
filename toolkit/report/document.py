"""The JSON form of plans: names are stable, more keys may come. Draws what the nouns say."""

from __future__ import annotations

from typing import Any

import msgspec

from toolkit import strategy as strategies
from toolkit.estimates import AXES, CommunicationEstimate, HostMemoryEstimate, MemoryEstimate
from toolkit.interval import Interval
from toolkit.plan import SCHEMA, Plan
from toolkit.whole_run import gpu_hours_per_billion_tokens, whole_run


def memory(estimate: MemoryEstimate, limit_bytes: float) -> dict[str, float]:
    """Total, limit and parts, in bytes per GPU."""
    return {"total_bytes": estimate.total_bytes, "limit_bytes": limit_bytes} | msgspec.structs.asdict(estimate)


def host_memory(estimate: HostMemoryEstimate, limit_bytes: float) -> dict[str, float]:
    """Total, limit and parts, in bytes per node."""
    return {"total_bytes": estimate.total_bytes, "limit_bytes": limit_bytes} | msgspec.structs.asdict(estimate)


def communication(estimate: CommunicationEstimate) -> dict[str, dict[str, float]]:
    """Bytes and seconds of each axis, per GPU and step."""
    return {
        axis: {"bytes": getattr(estimate, f"{axis}_bytes"), "seconds": getattr(estimate, f"{axis}_seconds")}
        for axis in AXES
    }


def interval(found: Interval | None, unit: str) -> dict[str, Any] | None:
    """An 80 % interval with the runs that it is based on."""
    if found is None:
        return None
    return {
        f"low_{unit}": found.low,
        f"high_{unit}": found.high,
        "distance": found.distance,
        "based_on": msgspec.to_builtins(found.based_on),
    }


def plan_element(plan: Plan, rank: int) -> dict[str, Any]:
    """One element of ``plans``."""
    hours, price = gpu_hours_per_billion_tokens(plan), plan.cluster.accelerator.price_per_hour
    return {
        "rank": rank,
        "strategy": strategies.to_json(plan.strategy),
        "description": strategies.describe(plan.strategy),
        "verdict": plan.verdict,
        "memory": memory(plan.memory, plan.memory_limit_bytes),
        "host_memory": host_memory(plan.host_memory, plan.cluster.host_memory_bytes),
        "communication": communication(plan.communication),
        "step": msgspec.structs.asdict(plan.step),
        "interval80": {
            "step": interval(plan.step_interval80, "seconds"),
            "memory": interval(plan.memory_interval80, "bytes"),
        },
        "gpu_hours_per_billion_tokens": hours,
        "cost_per_billion_tokens": hours * price if price else None,
        "whole_run": msgspec.to_builtins(whole_run(plan)),
        "resilience": msgspec.to_builtins(plan.resilience),
        "reason": list(plan.reason),
        "calibration": plan.calibration,
    }


def plans_document(
    request: Any,
    parameters: tuple[int, int],
    assumptions: tuple[str, ...],
    candidates: dict[str, Any],
    plans: list[Plan],
) -> dict[str, Any]:
    """Everything that ``toolkit plan --json`` prints."""
    total, active = parameters
    return {
        "schema": SCHEMA,
        "model": msgspec.to_builtins(request.model) | {"total_parameters": total, "active_parameters": active},
        "cluster": msgspec.to_builtins(request.cluster) | {"num_gpus": request.cluster.num_gpus},
        "workload": msgspec.to_builtins(request.workload),
        "assumptions": list(assumptions),
        "candidates": candidates,
        "plans": [plan_element(plan, rank + 1) for rank, plan in enumerate(plans)],
    }
