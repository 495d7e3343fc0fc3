"""``--explain``: one plan evaluated once more under a trace, subject by subject, each ending in the plan's figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolkit.cli.intervals import intervals_of
from toolkit.cli.plans import expected
from toolkit.cli.request import Asked
from toolkit.equation import trace
from toolkit.estimate.communication import communication
from toolkit.estimate.host import host_memory
from toolkit.estimate.memory import memory
from toolkit.estimate.parameters import count_parameters
from toolkit.estimate.step import step
from toolkit.estimates import Estimate
from toolkit.plan import Plan
from toolkit.report import terminal
from toolkit.units import format_bytes, format_count, format_seconds

ONLY_WITH_OFFLOAD = ("M17", "T8", "T9", "T16")  # evaluated for every column of a search; a plan may not use them


def explain_plan(out: Any, asked: Asked, plan: Plan) -> None:
    """Print every equation behind the figures of a plan with its values, and how the parts add up."""
    arguments = (asked.request.model, asked.request.cluster, asked.request.workload, plan.strategy)
    shown: set[str] = set()

    def show(title: str, evaluate: Callable[..., Any], *values: Any) -> Any:
        with trace() as steps:
            result = evaluate(*values)
        used = [step for step in steps if plan.strategy.offload or step.anchor not in ONLY_WITH_OFFLOAD]
        terminal.equations(out, title, used, shown)
        return result

    out.print("\nequations, numbered as in docs/maths.md; each value carries the name of its argument", markup=False)
    counts = show("parameters", count_parameters, asked.request.model)
    _sum(out, "the model", dict(counts.parts), format_count, counts.total)

    show("memory of a GPU: the pipeline stages that can be the fullest, in turn", memory, *arguments, asked.calibration)
    parts = {name: getattr(plan.memory, name) for name in plan.memory.__struct_fields__}
    _sum(out, "the fullest GPU", parts, format_bytes, plan.memory.total_bytes)

    show("host memory of a node", host_memory, *arguments, asked.calibration)
    host = plan.host_memory
    larger = "offload" if host.offload_bytes > host.loading_bytes else "loading"
    peak = max(host.offload_bytes, host.loading_bytes)
    held = {"process": host.process_bytes, f"{larger} (the larger of loading and offload)": peak}
    _sum(out, "a node", held, format_bytes, host.total_bytes)

    sent = show("communication of a GPU in one step", communication, *arguments, asked.calibration)
    terminal.axes(out, sent)

    show("failures and checkpoints", expected, asked, plan.strategy.framework, plan.step.seconds)

    estimate = Estimate(
        memory=plan.memory, host_memory=plan.host_memory, communication=plan.communication, step=plan.step
    )
    parameters = (plan.total_parameters, plan.active_parameters)
    show("80% intervals of step and memory", intervals_of, asked.calibration.name, parameters, arguments, estimate)

    title = "time of a step: likely, with perfect overlap (fraction 1) and with none (fraction 0)"
    show(title, step, *arguments, sent, asked.calibration)
    _sum(out, "a step", plan.step.parts, format_seconds, plan.step.seconds)


def _sum(out: Any, what: str, parts: dict[str, float], readable: Callable[[float], str], total: float) -> None:
    words = {
        name.removesuffix("_bytes").removesuffix("_seconds").replace("_", " "): readable(value)
        for name, value in parts.items()
        if value
    }
    terminal.sums(out, what, words, readable(total))
