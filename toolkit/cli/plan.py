"""``toolkit plan``: rank plans, explain them, write the best one's files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import request_options, strategy_options
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.cli.request import Asked
    from toolkit.plan import Plan
    from toolkit.search.planner import SearchResult


@click.command("plan")
@request_options
@strategy_options
@click.option(
    "--objective", type=click.Choice(["throughput", "memory", "cost"]), default="throughput", show_default=True
)
@click.option(
    "--compute-optimal",
    metavar="BUDGET",
    help="Size and tokens that a budget trains best: 1e24 (FLOP), '3640 PF-days', '2000 GPU-days'.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many layouts to show; of a front too."
)
@click.option("--pick", type=click.IntRange(min=1), default=1, show_default=True, help="Which rank --out writes.")
@click.option("--explain", is_flag=True, help="Show the formula and values behind every number.")
@click.option("--out", type=click.Path(file_okay=False), help="Write plan.json, configs and launch scripts here.")
@click.option("--force", is_flag=True, help="Let --out replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**options: Any) -> None:
    """Rank training plans for a model and a cluster.

    \b
    toolkit plan --params 7B --gpus 64
    toolkit plan --model ./config.json --gpus 8x8 --accelerator h100 --explain
    toolkit plan --recipe tiny --cluster local-cpu --gpus 2 --out demo
    toolkit plan --params 70B --gpus 64..2048 --tokens 1T --price-per-gpu-hour 2.5
    toolkit plan --compute-optimal 1e24 --gpus 1024
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's pool costs more CPU than the search
    more: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if options["compute_optimal"] is not None:
        from toolkit.cli import compute_optimal

        options, optimum = compute_optimal.chosen(options)
        more, notes = {"compute_optimal": optimum.document()}, compute_optimal.notes(optimum)
    if options["gpus"] and _several(options["gpus"]):
        from toolkit.cli.sweep import run

        run(options, more, notes)
        return
    from toolkit.cli.request import build

    asked = build(options)
    asked = replace(asked, assumptions=(*notes, *asked.assumptions))
    plans, result = plan(asked, max(options["top"], options["pick"]))
    if plans and options["pick"] > len(plans):
        raise ToolkitError(f"--pick {options['pick']}: there are {len(plans)} plans", remedy="pick one of those")
    if plans and options["out"] is not None:
        write(plans[options["pick"] - 1], options["out"], options["force"])
    shown = plans[: options["top"]]
    if options["as_json"]:
        click.echo(json.dumps(_document(asked, result, shown) | more, indent=2, allow_nan=False))
    elif plans:
        _print(asked, result, shown, options, more)
    if not plans:
        raise no_plan(asked, result)


def _several(gpus: str) -> bool:
    """Whether --gpus gives several counts; most commands give one, and need not import what reads them."""
    if not any(mark in gpus for mark in ("..", ",", "\u2026")):
        return False
    from toolkit.gpu_ranges import is_several

    return is_several(gpus)


def plan(asked: Asked, top: int) -> tuple[list[Plan], SearchResult]:
    """Search and turn the choices into Plans."""
    from toolkit.cli.plans import plans_of
    from toolkit.search.planner import search

    result = search(asked.request, asked.calibration, top)
    return plans_of(asked, result), result


def _document(asked: Asked, result: SearchResult, plans: list[Plan]) -> dict[str, Any]:
    from toolkit.estimate.parameters import count_parameters
    from toolkit.report.document import plans_document
    from toolkit.report.sweep import pareto
    from toolkit.search.pareto import front

    counts = count_parameters(asked.request.model)
    candidates = {
        "total": result.total,
        "feasible": result.feasible,
        "seconds": result.seconds,
        "eliminated": result.eliminated,
    }
    document = plans_document(asked.request, (counts.total, counts.active), asked.assumptions, candidates, plans)
    return document | {"pareto": pareto(front(asked.request, result), asked.request.workload)}


def _print(
    asked: Asked, result: SearchResult, plans: list[Plan], options: dict[str, Any], more: dict[str, Any]
) -> None:
    from toolkit.estimate.parameters import count_parameters
    from toolkit.report import runs, terminal

    out = terminal.console()
    request, best = asked.request, plans[0]
    counts = count_parameters(request.model)
    if "compute_optimal" in more:
        from toolkit.report import scaling_laws

        scaling_laws.laws(out, more["compute_optimal"])
    terminal.heading(out, request.model, counts.total, counts.active, request.cluster, request.workload)
    terminal.plans_table(out, plans)
    terminal.reasons(out, "why plan 1", best.reason)
    terminal.error_bars(out, "80% intervals of plan 1", best)
    terminal.memory_bars(out, best)
    runs.run_total(out, best)
    assumed = (*asked.assumptions, *runs.resilience_assumptions(best), *calibration_note(asked))
    terminal.reasons(out, "assumed", assumed)
    if options["explain"] or request.objective != "throughput":
        from toolkit.report import sweep
        from toolkit.search.pareto import front

        sweep.front(out, front(request, result), options["top"], request.workload)
    if options["explain"]:
        _explain(out, asked, result, best)
    else:
        out.print(
            f"{result.total:,} candidates; --explain shows every formula, --out DIR writes the files of plan 1",
            markup=False,
        )


def calibration_note(asked: Asked) -> list[str]:
    """How much of the calibration nobody measured."""
    return [asked.calibration.note]


def _explain(out: Any, asked: Asked, result: SearchResult, best: Plan) -> None:
    from toolkit.cli.explain import explain_plan
    from toolkit.report import terminal
    from toolkit.search.constraints import SENTENCES

    terminal.step_parts(out, best)
    terminal.ladder(out, result.ladder, best.memory_limit_bytes)
    terminal.candidates(out, result.total, result.feasible, result.seconds, result.eliminated, SENTENCES)
    explain_plan(out, asked, best)


def write(chosen: Plan, directory: str, force: bool) -> None:
    """Write the bundle of a plan; refuses to replace files unless forced."""
    from pathlib import Path

    from toolkit.cli.files import write_files
    from toolkit.emit.bundle import bundle
    from toolkit.emit.script import stop_note

    written = write_files(directory, bundle(chosen, str(Path(directory).absolute())), force)
    click.echo(f"wrote {', '.join(str(path) for path in written)}", err=True)
    if note := stop_note(chosen):
        click.echo(f"note: {note}", err=True)


def no_plan(asked: Asked, result: SearchResult) -> Exception:
    """What to tell when nothing fits: broken rules, or the nearest miss and every way out."""
    from toolkit.cli.request import larger_clusters, roomier_clusters
    from toolkit.errors import NoFeasiblePlan, Problem
    from toolkit.search.constraints import SENTENCES
    from toolkit.search.misses import nearly_legal, ways_to_fit
    from toolkit.search.planner import least_memory
    from toolkit.strategy import describe
    from toolkit.units import format_bytes

    ordered = sorted(result.eliminated.items(), key=lambda item: -item[1])
    rules = "\n  ".join(f"{count:,}: {SENTENCES[name]}" for name, count in ordered)
    problems = []
    nearest = least_memory(asked.request, asked.calibration, result)
    if nearest is None:
        near = nearly_legal(asked.request)
        if near is not None:
            problems += [Problem(f"{describe(near[0])}: {each.message}", each.remedy) for each in near[1]]
        problems.append(Problem(f"none of {result.total:,} candidates is legal; they break first", rules))
    elif nearest.estimate.memory.total_bytes > nearest.limit_bytes:
        parts = sorted(
            ((getattr(nearest.estimate.memory, n), n) for n in nearest.estimate.memory.__struct_fields__), reverse=True
        )
        largest = ", ".join(f"{name.removesuffix('_bytes')} {format_bytes(value)}" for value, name in parts[:3])
        problems.append(
            Problem(
                f"no plan fits: the nearest miss, {describe(nearest.strategy)}, needs "
                f"{format_bytes(nearest.estimate.memory.total_bytes)} of {format_bytes(nearest.limit_bytes)} "
                f"({largest})"
            )
        )
    else:
        problems.append(
            Problem(
                f"no plan fits: the nearest miss, {describe(nearest.strategy)}, fits the GPU with "
                f"{format_bytes(nearest.estimate.memory.total_bytes)} of {format_bytes(nearest.limit_bytes)}, but "
                f"needs {format_bytes(nearest.estimate.host_memory.total_bytes)} of host memory on a node that has "
                f"{format_bytes(nearest.host_limit_bytes)}"
            )
        )
    if nearest is not None:
        problems.append(Problem(f"none of {result.total:,} candidates fits; they break first", rules))
    ways = ways_to_fit(asked.request, asked.calibration, larger_clusters(asked), roomier_clusters(asked))
    if ways:
        problems.append(Problem("it would fit", "\n  ".join(str(way) for way in ways)))
    return NoFeasiblePlan(*problems)
