"""``toolkit plan --gpus 8..512``: one contract on several numbers of GPUs, a line for each, and the Pareto front."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from toolkit.calibrate.measured import on_measured
from toolkit.cli.request import Asked, build, priced
from toolkit.cluster import ClusterSpec
from toolkit.errors import NoFeasiblePlan, Problem, Problems, ToolkitError
from toolkit.gpu_ranges import GpuRange, between, parse_range

if TYPE_CHECKING:
    from toolkit.plan import Plan
    from toolkit.search.sweep import Entry, Sweep
    from toolkit.whole_run import WholeRun

SAME_BATCH = (
    "the global batch and the whole contract are the same at every GPU count; efficiency is strong scaling, against "
    "the smallest count that fits"
)
ONE_COUNT_ONLY = {"out": "--out writes", "explain": "--explain shows", "pick": "--pick chooses"}


def run(options: dict[str, Any], more: dict[str, Any], notes: tuple[str, ...] = ()) -> None:
    """The whole command for several counts; ``more`` goes into the JSON document, ``notes`` into the assumptions."""
    from toolkit.report import sweep as drawing

    asked, plans, found = plans_of_counts(options, notes)
    document = drawing.document(asked[-1].request, _counts(asked, plans, found), found, asked[-1].assumptions) | more
    if options["as_json"]:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    elif found.fitting:
        _print(asked, plans, found, document, options)
    if not found.fitting:
        raise _nothing(asked)


def plans_of_counts(
    options: dict[str, Any], notes: tuple[str, ...] = ()
) -> tuple[list[Asked], list[Plan | None], Sweep]:
    """Every count with its best plan, or None where nothing fits; raises ToolkitError for bad input."""
    from toolkit.cli.plans import plans_of
    from toolkit.search.sweep import sweep

    asked = [replace(each, assumptions=(*notes, *each.assumptions)) for each in asked_for(options)]
    found = sweep([each.request for each in asked], asked[0].calibration)
    plans: list[Plan | None] = [
        plans_of(each, entry.result)[0] if entry.choice else None
        for each, entry in zip(asked, found.entries, strict=True)
    ]
    return asked, plans, found


def asked_for(options: dict[str, Any]) -> list[Asked]:
    """One request for each count, rising, with the contract that suits all; raises ToolkitError with all problems."""
    with Problems() as problems:
        for option, words in ONE_COUNT_ONLY.items():
            if options.get(option) not in (None, False, 1):
                problems.add(
                    f"{words} one plan, and --gpus {options['gpus']} gives several", "name one count: --gpus 64"
                )
        given: tuple[list[ClusterSpec], list[str], GpuRange] | None = None
        try:
            given = clusters_of(options)
        except ToolkitError as error:
            problems.absorb(error)
        if problems.found:
            try:
                build(options | {"gpus": "1"})  # for what else is wrong
            except ToolkitError as error:
                problems.found += [each for each in error.problems if each not in problems.found]
    if given is None:
        raise AssertionError("problems were found, but not raised")
    clusters, said, counts = given
    numbers = tuple(cluster.num_gpus for cluster in clusters)
    base = build(options | {"gpus": counts.text(numbers[-1]), "gpu_counts": numbers})
    notes = [note for cluster in clusters for note in cluster.notes if note not in base.assumptions]
    assumptions = (*base.assumptions, *dict.fromkeys(notes), *said, SAME_BATCH)
    return [
        replace(
            base,
            request=base.request.replace(cluster=on_measured(priced(cluster, options), base.calibration)),
            assumptions=assumptions,
            options=options | {"gpus": counts.text(cluster.num_gpus)},
        )
        for cluster in clusters
    ]


def clusters_of(options: dict[str, Any]) -> tuple[list[ClusterSpec], list[str], GpuRange]:
    """The machines of every count, what was assumed on the way, and the counts as they were written."""
    from toolkit.registry.clusters import resolve_cluster

    counts = parse_range(options["gpus"])
    where: dict[str, Any] = {
        "cluster": options.get("cluster"),
        "accelerator": options.get("accelerator") or counts.accelerator or None,
        "gpus_per_node": options.get("gpus_per_node"),
    }

    def cluster(gpus: int) -> ClusterSpec:
        return resolve_cluster(counts.text(gpus), **where)

    said: list[str] = []
    numbers = counts.counts
    if not counts.listed:
        low, high = numbers
        node = counts.gpus_per_node or resolve_cluster(None, **where).gpus_per_node
        numbers = between(low, high, node, whole_nodes=bool(counts.gpus_per_node))
        if not numbers:
            below = low // node * node
            raise ToolkitError(
                f"no number of GPUs from {low:,} to {high:,} makes whole nodes of {node}",
                remedy=f"the nearest are {below:,} and {below + node:,}" if below else f"the nearest is {node:,}",
            )
        if (numbers[0], numbers[-1]) != (low, high):
            said.append(f"{low:,} to {high:,} GPUs are {numbers[0]:,} to {numbers[-1]:,} in whole nodes of {node}")
    found = []
    with Problems() as problems:
        for number in reversed(numbers):  # the largest first: where it is too many, the rest is not asked
            try:
                found.append(cluster(number))
            except ToolkitError as error:
                problems.absorb(error)
                if not counts.listed:
                    break
    return found[::-1], said, counts


def _counts(asked: list[Asked], plans: list[Plan | None], found: Sweep) -> list[dict[str, Any]]:
    """One element of ``sweep.counts`` for each count."""
    from toolkit.report.document import plan_element
    from toolkit.whole_run import whole_run

    rows = []
    for each, plan, entry in zip(asked, plans, found.entries, strict=True):
        cluster, workload = each.request.cluster, each.request.workload
        row: dict[str, Any] = {"gpus": entry.gpus, "nodes": cluster.nodes, "gpus_per_node": cluster.gpus_per_node}
        if plan is None:
            rows.append(row | {"plan": None, "why": _why(entry)})
            continue
        run = whole_run(plan)
        tokens = 1.0 * workload.sequences_per_step * workload.sequence_length
        gpu_hours = entry.gpus * plan.step.seconds / 3600.0 / tokens * 1e9
        price = cluster.accelerator.price_per_hour
        rows.append(
            row
            | {
                "step_seconds": plan.step.seconds,
                "total_bytes": plan.memory.total_bytes,
                "verdict": plan.verdict,
                "tokens_per_second": tokens / plan.step.seconds,
                "speed_up": entry.speed_up,
                "efficiency": entry.efficiency,
                "marginal_efficiency": entry.marginal,
                "gpu_hours_per_billion_tokens": gpu_hours,
                "cost_per_billion_tokens": gpu_hours * price if price else None,
                "cost": _cost(run, plan) if run else None,
                "marks": [
                    name for name in ("knee", "fastest", "cheapest", "leanest") if getattr(found, name) == entry.gpus
                ],
                "candidates": {
                    "total": entry.result.total,
                    "feasible": entry.result.feasible,
                    "seconds": entry.result.seconds,
                },
                "plan": plan_element(plan, 1),
            }
        )
    return rows


def _cost(run: WholeRun, plan: Plan) -> float | None:
    """Of the whole run, failures included where they are known; None without a price, or where it never ends."""
    return run.cost if plan.resilience is None else run.expected_cost


def _why(entry: Entry) -> str:
    """Why nothing fits on this many GPUs."""
    from toolkit.search.constraints import SENTENCES
    from toolkit.strategy import describe
    from toolkit.units import format_bytes

    nearest = entry.nearest
    if nearest is None:
        first = max(entry.result.eliminated, key=lambda name: entry.result.eliminated[name], default="")
        return f"no candidate is legal: {SENTENCES[first]}" if first else "no candidate is legal"
    needed, limit = nearest.estimate.memory.total_bytes, nearest.limit_bytes
    if needed <= limit:
        needed, limit = nearest.estimate.host_memory.total_bytes, nearest.host_limit_bytes
    return f"nothing fits: {describe(nearest.strategy)} needs {format_bytes(needed)} of {format_bytes(limit)}"


def _print(
    asked: list[Asked], plans: list[Plan | None], found: Sweep, document: dict[str, Any], options: dict[str, Any]
) -> None:
    from toolkit.cli.plan import calibration_note
    from toolkit.estimate.parameters import count_parameters
    from toolkit.report import runs, terminal
    from toolkit.report import sweep as drawing

    out = terminal.console()
    counts = count_parameters(asked[-1].request.model)
    if "compute_optimal" in document:
        from toolkit.report import scaling_laws

        scaling_laws.laws(out, document["compute_optimal"])
    request = asked[-1].request
    best = next(plan for plan in reversed(plans) if plan is not None)
    drawing.heading(out, request.model, counts.total, counts.active, request.cluster, request.workload, len(asked))
    drawing.table(out, document["sweep"])
    drawing.summary(out, document["sweep"], request.objective)
    drawing.front(out, found.front, options["top"], request.workload)
    assumed = (*asked[-1].assumptions, *runs.resilience_assumptions(best), *calibration_note(asked[-1]))
    terminal.reasons(out, "assumed", assumed)
    total = sum(entry.result.total for entry in found.entries)
    out.print(f"{total:,} candidates; --gpus N explains and writes the plan of one count", markup=False)


def _nothing(asked: list[Asked]) -> ToolkitError:
    """What to tell when no count fits: the counts, and what the largest lacks."""
    from toolkit.cli.plan import no_plan, plan

    _, result = plan(asked[-1], 1)
    counts = ", ".join(f"{each.request.cluster.num_gpus:,}" for each in asked)
    why = no_plan(asked[-1], result)
    return NoFeasiblePlan(
        Problem(f"nothing fits on any of {counts} GPUs; of the largest:"),
        *(why.problems if isinstance(why, ToolkitError) else ()),
    )
