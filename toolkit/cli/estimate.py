"""``toolkit estimate``: one strategy, every degree given, evaluated by the formulas of the search."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import pins_of, request_options, strategy_options

if TYPE_CHECKING:
    from toolkit.search.request import Request
    from toolkit.strategy import Strategy


@click.command("estimate")
@request_options
@strategy_options
@click.option("--explain", is_flag=True, help="Show the formula and values behind every number.")
@click.option("--out", type=click.Path(file_okay=False), help="Write plan.json, configs and launch scripts here.")
@click.option("--force", is_flag=True, help="Let --out replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**options: Any) -> None:
    """Evaluate one strategy. Degrees that are not given are 1; dp and accumulation follow from the rest.

    \b
    toolkit estimate --model llama-2-7b --gpus 8 --accelerator a100-80gb --zero 2 --micro-batch 1
    """
    from toolkit.cli.plans import plan_of
    from toolkit.cli.request import build
    from toolkit.errors import ToolkitError
    from toolkit.report import document
    from toolkit.search.advice import advice
    from toolkit.search.constraints import violated
    from toolkit.search.planner import choose
    from toolkit.search.remedies import remedies

    asked = build(options)
    strategy = strategy_of(asked.request, pins_of(options))
    broken = violated(asked.request, strategy)
    if any(not constraint.advice for constraint, _ in broken):
        raise ToolkitError(*(problem for _, problem in broken))
    warnings = tuple(f"warning: {problem.message} ({problem.remedy})" for _, problem in broken)
    choice = choose(asked.request, asked.calibration, strategy)
    notes = [*warnings, *advice(asked.request, choice)]
    if choice.verdict != "fits":
        notes += filter(None, [remedies(asked.request, asked.calibration, strategy)])
    plan = plan_of(asked, choice, tuple(notes))
    if options["out"] is not None:
        from toolkit.cli.plan import write

        write(plan, options["out"], options["force"])
    if options["as_json"]:
        click.echo(json.dumps(document.plan_element(plan, 1), indent=2, allow_nan=False))
    else:
        from toolkit.cli.explain import explain_plan
        from toolkit.report import runs, terminal

        out = terminal.console()
        terminal.heading(out, plan.model, plan.total_parameters, plan.active_parameters, plan.cluster, plan.workload)
        terminal.plans_table(out, [plan])
        terminal.reasons(out, "notes", plan.reason)
        terminal.error_bars(out, "80% intervals", plan)
        terminal.memory_bars(out, plan)
        runs.run_total(out, plan)
        terminal.step_parts(out, plan)
        assumed = (*asked.assumptions, *runs.resilience_assumptions(plan), asked.calibration.note)
        terminal.reasons(out, "assumed", assumed)
        if options["explain"]:
            explain_plan(out, asked, plan)
    if plan.verdict == "no":
        raise SystemExit(1)


def strategy_of(request: Request, pins: dict[str, int]) -> Strategy:
    """The scalar strategy of the given degrees; the framework is the simplest that does them."""
    from toolkit.strategy import CP_METHODS, RECOMPUTE, Strategy

    full = RECOMPUTE.index("full")
    framework = request.framework
    if framework == "any":
        if any(pins.get(name, 1) > 1 for name in ("tp", "pp", "cp", "ep", "virtual_pipeline_stages")):
            framework = "megatron"
        else:
            simple = not any(pins.get(name, 0) > 0 for name in ("zero_stage", "offload")) and pins.get("hpz", 1) == 1
            framework = "ddp" if simple else "deepspeed"
        if framework not in request.allowed_frameworks:
            framework = request.allowed_frameworks[-1]
    degrees: dict[str, Any] = {
        name: pins.get(name, 1) for name in ("tp", "pp", "cp", "ep", "virtual_pipeline_stages", "hpz")
    }
    dp = pins.get("dp", max(request.cluster.num_gpus // (degrees["tp"] * degrees["pp"] * degrees["cp"]), 1))
    micro = pins.get("micro_batch_size", 1)
    return Strategy(
        framework=framework,
        **degrees,
        etp=pins.get("etp", degrees["tp"]),
        dp=dp,
        dp_shard=pins.get("dp_shard", dp),
        zero_stage=pins.get("zero_stage", 3 if framework == "fsdp" else 0),
        micro_batch_size=micro,
        gradient_accumulation_steps=pins.get(
            "gradient_accumulation_steps", max(request.workload.global_batch_size // (micro * dp), 1)
        ),
        sequence_parallel=pins.get("sequence_parallel", 0),
        recompute=pins.get("recompute", full if pins.get("recompute_layers") else 0),
        recompute_layers=pins.get("recompute_layers", 0),
        cp_method=CP_METHODS[pins.get("cp_method", 0)],  # type: ignore[arg-type]
        offload=pins.get("offload", 0),
    )
