"""From ranked choices to Plans: what the user reads, what plan.json holds."""

from __future__ import annotations

from toolkit.cli.intervals import intervals_of
from toolkit.cli.request import Asked
from toolkit.estimate.parameters import count_parameters
from toolkit.estimate.resilience import resilience
from toolkit.plan import Plan
from toolkit.recipe import planned_steps
from toolkit.registry.reliability import reliability_of
from toolkit.resilience import ResilienceEstimate
from toolkit.search.advice import advice
from toolkit.search.planner import Choice, SearchResult
from toolkit.search.reasons import reasons


def plan_of(asked: Asked, choice: Choice, reason: tuple[str, ...]) -> Plan:
    """A Plan for one choice."""
    request, estimate = asked.request, choice.estimate
    counts = count_parameters(request.model)
    job = (request.model, request.cluster, request.workload, choice.strategy)
    step_interval, memory_interval = intervals_of(asked.calibration.name, (counts.total, counts.active), job, estimate)
    return Plan(
        name=asked.name,
        program="pretrain" if choice.strategy.framework == "megatron" else "finetune",
        recipe=_origin(asked),
        model=request.model,
        cluster=request.cluster,
        workload=request.workload,
        contract=asked.contract,
        strategy=choice.strategy,
        verdict=choice.verdict,
        memory=estimate.memory,
        host_memory=estimate.host_memory,
        communication=estimate.communication,
        step=estimate.step,
        step_interval80=step_interval,
        memory_interval80=memory_interval,
        resilience=expected(asked, choice.strategy.framework, choice.estimate.step.seconds),
        memory_limit_bytes=choice.limit_bytes,
        total_parameters=counts.total,
        active_parameters=counts.active,
        reason=reason,
        assumptions=asked.assumptions,
        calibration=asked.calibration.reference,
    )


def _origin(asked: Asked) -> str:
    """Which recipe, and which of its settings were changed; empty without one."""
    recipe = asked.recipe
    if recipe is None:
        return ""
    changed = [
        name
        for name in asked.contract.__struct_fields__
        if getattr(asked.contract, name) != getattr(recipe.contract, name)
    ]
    return f"{recipe.name}@{recipe.version}" + (f" with another {', '.join(changed)}" if changed else "")


def expected(asked: Asked, framework: str, step_seconds: float) -> ResilienceEstimate | None:
    """The checkpoint interval that suits the cluster's failures, and what to expect of the run."""
    request = asked.request
    known = reliability_of(request.cluster)
    if known is None:
        return None
    return resilience(
        request.model,
        request.workload,
        framework,
        request.cluster.num_gpus,
        step_seconds,
        known,
        planned_steps(asked.contract),
    )


def plans_of(asked: Asked, result: SearchResult) -> list[Plan]:
    """All choices as Plans, best first, each with its reasons."""
    return [
        plan_of(asked, choice, (*reasons(asked.request, result, choice), *advice(asked.request, choice)))
        for choice in result.choices
    ]
