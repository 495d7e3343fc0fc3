"""A sweep of GPU counts: its JSON form, a line for each count, the knee, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from toolkit import strategy as strategies
from toolkit.plan import SCHEMA
from toolkit.report.runs import UNKNOWN, money
from toolkit.report.tables import Column, draw
from toolkit.report.terminal import paragraph, seconds_in_words
from toolkit.units import format_bytes, format_count, format_seconds
from toolkit.workload import batch_unit

USEFUL = 0.25  # a front in which points stand for others that differ by more says nothing of those
KNEE = (
    "the count with the largest efficiency over step time (Eager, Zahorjan, Lazowska 1989): beyond it, twice the GPUs "
    "make a step less than 1.41 times faster"
)


def document(request: Any, counts: list[dict[str, Any]], found: Any, assumptions: tuple[str, ...]) -> dict[str, Any]:
    """What ``--json`` prints; ``plans`` holds the best plan of every count, ranked by the objective."""
    fitting = [row for row in counts if row["plan"] is not None]
    order = {
        "throughput": lambda row: row["plan"]["step"]["seconds"],
        "memory": lambda row: row["plan"]["memory"]["total_bytes"],
        "cost": lambda row: row["gpu_hours_per_billion_tokens"],
    }[request.objective]
    ranked = sorted(fitting, key=order)
    return {
        "schema": SCHEMA,
        "model": msgspec.to_builtins(request.model),
        "cluster": msgspec.to_builtins(request.cluster) | {"num_gpus": request.cluster.num_gpus},
        "workload": msgspec.to_builtins(request.workload),
        "objective": request.objective,
        "assumptions": list(assumptions),
        "sweep": {
            "baseline_gpus": fitting[0]["gpus"] if fitting else None,
            "knee": found.knee,
            "knee_definition": KNEE,
            "fastest": found.fastest,
            "cheapest": found.cheapest,
            "leanest": found.leanest,
            "price_per_gpu_hour": request.cluster.accelerator.price_per_hour or None,
            "counts": counts,
        },
        "pareto": pareto(found.front, request.workload),
        "plans": [row["plan"] | {"rank": rank, "gpus": row["gpus"]} for rank, row in enumerate(ranked, 1)],
    }


def pareto(points: Sequence[Any], workload: Any) -> list[dict[str, Any]]:
    """The front as plain data, in order of GPUs and time."""
    tokens = 1.0 * workload.sequences_per_step * workload.sequence_length
    return [
        {
            "gpus": each.gpus,
            "step_seconds": each.seconds,
            "total_bytes": each.total_bytes,
            "verdict": each.verdict,
            "gpu_hours_per_billion_tokens": each.gpu_seconds / 3600.0 / tokens * 1e9,
            "cost_per_billion_tokens": _cost(each, tokens),
            "strategy": strategies.to_json(each.strategy),
            "description": strategies.describe(each.strategy),
        }
        for each in points
    ]


def _cost(point: Any, tokens: float) -> float | None:
    price = float(point.request.cluster.accelerator.price_per_hour)
    return point.gpu_seconds / 3600.0 / tokens * 1e9 * price if price else None


def heading(out: Console, model: Any, total: int, active: int, cluster: Any, workload: Any, counts: int) -> None:
    """What is trained, on which machines, how much in a step."""
    parameters = f"{format_count(total)} parameters" + (f", {format_count(active)} active" if active != total else "")
    out.print(Text(f"{model.name}: {parameters}", style="bold"))
    out.print(
        f"{counts} counts of {cluster.accelerator.name} ({cluster.name}), "
        f"{format_bytes(cluster.accelerator.memory_bytes)} usable each",
        markup=False,
    )
    out.print(
        f"{workload.method}, {workload.precision}, {workload.global_batch_size} {batch_unit(workload)} x "
        f"{workload.sequence_length} tokens per step at every count",
        markup=False,
    )


def table(out: Console, sweep: dict[str, Any]) -> None:
    """One line for each count."""
    timed = any(row["plan"] and row["plan"]["whole_run"] for row in sweep["counts"])
    priced = sweep["price_per_gpu_hour"] is not None
    columns = [
        Column("GPUs"),
        Column("memory\nGiB"),
        Column("step\ns"),
        Column("step s\n80%", spare=2),
        Column("tokens/s", spare=4),
        Column("speed-\nup", spare=3, called="speed-up"),
        Column("effi-\nciency", called="efficiency"),
        Column("GPU-h per\n1B tokens", spare=1 if priced else 0),
    ]
    columns += [Column("cost per\n1B tokens")] if priced else []
    columns += [Column("days"), Column("good-\nput", called="goodput")] if timed else []
    columns += [Column("cost of\nthe run")] if timed and priced else []
    columns += [Column("", "left"), Column("plan", "left", wraps=True)]
    rows = [
        [*_cells(row, priced, timed), "knee" if row["gpus"] == sweep["knee"] else "", row["plan"]["description"]]
        if row["plan"]
        else [f"{row['gpus']:,}", *["-"] * (len(columns) - 3), "", row["why"]]
        for row in sweep["counts"]
    ]
    draw(out, columns, rows, below=True)
    if priced and timed:
        line = (
            "cost per 1B tokens is of steps without interruption; days and cost of the run have the failures to expect"
        )
        out.print(paragraph(line, out.width, "", 2), markup=False, soft_wrap=True)


def _cells(row: dict[str, Any], priced: bool, timed: bool) -> list[str]:
    plan = row["plan"]
    seconds, bars = plan["step"]["seconds"], plan["interval80"]["step"]
    cells = [
        f"{row['gpus']:,}",
        f"{plan['memory']['total_bytes'] / 2**30:.1f}" + ("!" if plan["verdict"] == "tight" else ""),
        seconds_in_words(seconds),
        f"{seconds_in_words(bars['low_seconds'])}-{seconds_in_words(bars['high_seconds'])}" if bars else "-",
        format_count(row["tokens_per_second"]),
        f"{row['speed_up']:.3g}",
        f"{row['efficiency']:.0%}",
        f"{row['gpu_hours_per_billion_tokens']:.3g}",
        *([money(row["cost_per_billion_tokens"])] if priced else []),
    ]
    if timed:
        run, failures = plan["whole_run"], plan["resilience"]
        ends = failures is None or run["expected_seconds"] is not None
        cells += [
            f"{(run['expected_seconds'] or run['seconds']) / 86400.0:.3g}" if ends else "never",
            UNKNOWN if failures is None else f"{failures['goodput']:.1%}",
            *([money(row["cost"])] if priced else []),
        ]
    return cells


def summary(out: Console, sweep: dict[str, Any], objective: str) -> None:
    """The knee with its meaning, and the best count for the objective."""
    names = {"throughput": "fastest", "memory": "leanest", "cost": "cheapest"}
    first = names.pop(objective)
    words = [f"{first} on {sweep[first]:,} GPUs (--objective {objective})"]
    words += [f"{name} on {sweep[name]:,}" for name in names.values()]
    out.print(", ".join(words), markup=False)
    if sweep["knee"] is not None:
        line = f"knee: {sweep['knee']:,} GPUs, {KNEE}"
        if sweep["knee"] == sweep["counts"][-1]["gpus"]:
            line += "; it is the largest count here, so there may be more to gain"
        out.print(paragraph(line, out.width, "", 2), markup=False, soft_wrap=True)
    tight = any(row["plan"] and row["plan"]["verdict"] == "tight" for row in sweep["counts"])
    if tight:
        out.print("! more than 92% of the usable memory: it may run out", markup=False)
    if sweep["price_per_gpu_hour"] is None:
        out.print("cost unknown: no --price-per-gpu-hour, and none in the cluster file", markup=False)


def front(out: Console, points: Sequence[Any], most: int, workload: Any) -> None:
    """The Pareto front of one count in at most ``most`` lines, that of several in at most three for each."""
    title = f"Pareto front of step time, memory and GPUs: {len(points):,} plans"
    if len({each.gpus for each in points}) > 1:
        shown = representatives(points, most)
        words = ("the fastest", "the leanest", "the one with the least time x memory")[:most]
        title += f"; of each count {' and '.join(words)}"
    else:
        shown, epsilon = thinned(points, most)
        if epsilon > USEFUL:
            title += f", {len(shown)} shown; --top shows more"
        elif epsilon:
            title += f", {len(shown)} shown; each other one is within {epsilon:.0%} of one of these"
    out.print(Text(paragraph(title, out.width, "\n", 2), style="bold"), soft_wrap=True)
    rows = [
        [
            f"{row['gpus']:,}",
            format_seconds(row["step_seconds"]),
            f"{row['total_bytes'] / 2**30:.1f}",
            row["verdict"],
            f"{row['gpu_hours_per_billion_tokens']:.3g}",
            row["description"],
        ]
        for row in pareto(shown, workload)
    ]
    columns = (
        Column("GPUs"),
        Column("step"),
        Column("memory\nGiB"),
        Column("verdict", "left"),
        Column("GPU-h per\n1B tokens"),
        Column("plan", "left", wraps=True),
    )
    draw(out, columns, rows)


def representatives(points: Sequence[Any], most: int = 3) -> list[Any]:
    """Of each count the fastest, the leanest, and the one with the least time x memory: the first ``most`` of them."""
    shown: list[Any] = []
    for gpus in sorted({each.gpus for each in points}):
        here = [each for each in points if each.gpus == gpus]
        wanted = (
            min(here, key=lambda each: each.seconds),
            min(here, key=lambda each: each.total_bytes),
            min(here, key=lambda each: each.seconds * each.total_bytes),
        )[:most]
        shown += sorted({id(each): each for each in wanted}.values(), key=lambda each: each.seconds)
    return shown


def thinned(points: Sequence[Any], most: int) -> tuple[list[Any], float]:
    """At most ``most`` points such that each other one is matched by one of them within epsilon in time and memory.

    An epsilon-approximate Pareto set: Papadimitriou and Yannakakis 2000, doi 10.1109/SFCS.2000.892068.
    """
    epsilon = 0.0
    while True:
        kept: list[Any] = []
        for point in points:
            if not any(
                other.gpus <= point.gpus
                and other.seconds <= point.seconds * (1.0 + epsilon)
                and other.total_bytes <= point.total_bytes * (1.0 + epsilon)
                for other in kept
            ):
                kept.append(point)
        if len(kept) <= most:
            return kept, epsilon
        epsilon = 1.5 * epsilon or 0.02
