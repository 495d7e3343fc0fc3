"""A sweep of GPU counts: its JSON form, a line for each count, the knee, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit import strategy as strategies
from toolkit.plan import SCHEMA
from toolkit.report.runs import UNKNOWN, money
from toolkit.report.terminal import paragraph, seconds_in_words
from toolkit.units import format_bytes, format_count, format_seconds

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
    tokens = 1.0 * workload.global_batch_size * workload.sequence_length
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
        f"{workload.method}, {workload.precision}, {workload.global_batch_size} sequences x "
        f"{workload.sequence_length} tokens per step at every count",
        markup=False,
    )


def table(out: Console, sweep: dict[str, Any]) -> None:
    """One line for each count."""
    timed = any(row["plan"] and row["plan"]["whole_run"] for row in sweep["counts"])
    heads = [
        "GPUs",
        "memory\nGiB",
        "step\ns",
        "step s\n80 %",
        "tokens/s",
        "speed-\nup",
        "effi-\nciency",
        "GPU-h per\n1B tokens",
    ]
    priced = sweep["price_per_gpu_hour"] is not None
    heads += ["cost per\n1B tokens"] if priced else []
    heads += ["days", "good-\nput"] if timed else []
    heads += ["cost of\nthe run"] if timed and priced else []
    rows = [
        [*_cells(row, priced, timed), "knee" if row["gpus"] == sweep["knee"] else "", row["plan"]["description"]]
        if row["plan"]
        else [f"{row['gpus']:,}", *[""] * len(heads), row["why"]]
        for row in sweep["counts"]
    ]
    out.print(_table(out, [*heads, "", "plan"], rows))


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
        out.print("! more than 92 % of the usable memory: it may run out", markup=False)
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
        if epsilon:
            title += f", {len(shown)} shown; each other one is within {epsilon:.0%} of one of these"
    out.print(Text(f"\n{title}", style="bold"))
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
    out.print(_table(out, ["GPUs", "step", "memory\nGiB", "verdict", "GPU-h per\n1B tokens", "plan"], rows))


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


def _table(out: Console, heads: list[str], rows: list[list[str]]) -> Table:
    """A table whose last column, the plan, is cut where a line would be too long; the others never are."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    room = out.width
    for place, name in enumerate(heads[:-1]):
        width = max(*(len(part) for part in name.split("\n")), *(len(row[place]) for row in rows if len(row) > place))
        left = name in ("", "verdict")
        drawn.add_column(name, justify="left" if left else "right", no_wrap=True, min_width=width, max_width=width)
        room -= width + 2  # blank and edge
    drawn.add_column(heads[-1], justify="left", no_wrap=True, overflow="ellipsis", max_width=max(room, 12))
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn
