"""What the whole run takes: days, GPU-hours and price, uninterrupted and with the failures to expect."""

from __future__ import annotations

from rich.console import Console

from toolkit.plan import Plan
from toolkit.recipe import planned_steps
from toolkit.report.terminal import paragraph
from toolkit.schedule import points
from toolkit.units import format_bytes, format_count, format_seconds, format_whole
from toolkit.whole_run import gpu_hours_per_billion_tokens, whole_run

UNKNOWN = "unknown"


def money(value: float | None) -> str:
    """A sum in the currency of the price, or that it is not known."""
    if value is None:
        return UNKNOWN
    return format_whole(value)


def run_total(out: Console, plan: Plan) -> None:
    """What a billion tokens cost where there is a price; days, GPU-hours and price of the run where it has a length."""
    run, expected = whole_run(plan), plan.resilience
    price = plan.cluster.accelerator.price_per_hour
    if price:
        hours = gpu_hours_per_billion_tokens(plan)
        line = (
            f"1B tokens: {format_whole(hours)} GPU-hours, {money(hours * price)} at {price:g} a GPU-hour, without "
            "interruption"
        )
        out.print(paragraph(line, out.width, "", 2), markup=False, soft_wrap=True)
    if run is None:
        return
    cost = f"{money(run.cost)} at {price:g} a GPU-hour" if price else "cost unknown (no --price-per-gpu-hour)"
    line = (
        f"the whole run, uninterrupted: {run.steps:,} steps, {format_count(run.tokens)} tokens, "
        f"{format_seconds(run.seconds)}, {format_whole(run.gpu_hours)} GPU-hours, {cost}"
    )
    out.print(paragraph(line, out.width, "", 2), markup=False, soft_wrap=True)
    if plan.recipe and plan.contract.learning_rate and run.steps == planned_steps(plan.contract):
        of_steps = (each for each in points(plan.contract, run.steps) if each.where != "end")
        found = ", ".join(f"{each.rate:.4g} at {each.step:,}" for each in of_steps)
        out.print(paragraph(f"learning rate by step: {found}", out.width, "", 2), markup=False, soft_wrap=True)
    if expected is None:
        return
    if run.expected_seconds is None or run.interruptions is None:
        out.print(
            f"  a failure every {format_seconds(expected.failure_interval_seconds)}, and a checkpoint takes "
            f"{format_seconds(expected.checkpoint_seconds)}: this run would hardly end",
            markup=False,
        )
        return
    paid = f", {money(run.expected_cost)}" if price else ""
    out.print(
        paragraph(
            f"with failures: {format_seconds(run.expected_seconds)}, {format_whole(run.expected_gpu_hours or 0.0)} "
            f"GPU-hours{paid}; {_number(run.interruptions)} interruptions, one in "
            f"{format_seconds(expected.failure_interval_seconds)}; goodput {expected.goodput:.1%} with a checkpoint of "
            f"{format_bytes(expected.checkpoint_bytes)} every {expected.checkpoint_steps:,} steps "
            f"({format_seconds(expected.checkpoint_steps * plan.step.seconds)}), written in "
            f"{format_seconds(expected.checkpoint_seconds)}",
            out.width,
            "  ",
        ),
        markup=False,
        soft_wrap=True,
    )


def resilience_assumptions(plan: Plan) -> tuple[str, ...]:
    """What the run's expectations rest on; nothing where the run has no known length, so that none are shown."""
    return plan.resilience.assumptions if plan.resilience and whole_run(plan) else ()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
