"""What each scaling law makes of a budget, with its constants."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from toolkit.report.tables import Column, draw
from toolkit.report.terminal import paragraph
from toolkit.units import format_count


def laws(out: Console, found: dict[str, Any]) -> None:
    """A line for each law, then what is planned; ``found`` is ``compute_optimal`` of the JSON document."""
    budget = f"{found['flop']:.4g} FLOP"
    if found["gpu_days"]:
        budget = f"{found['gpu_days']:,.4g} GPU-days, at the rate of the plan below {budget}"
    title = f"compute-optimal for {budget} = 6 x parameters x tokens"
    out.print(Text(paragraph(title, out.width, "", 2), style="bold"), soft_wrap=True)
    columns = (
        Column("parameters"),
        Column("tokens"),
        Column("tokens per\nparameter"),
        Column("loss"),
        Column("law", "left", wraps=True),
        Column("loss = E + A/N^alpha + B/D^beta", "left", wraps=True),
    )
    rows = []
    for law in found["laws"]:
        best = law["optimum"]
        rows.append(
            (
                format_count(best["parameters"]),
                format_count(best["tokens"]),
                f"{best['tokens_per_parameter']:.1f}",
                f"{best['loss']:.3f}",
                law["title"],
                f"E {law['E']} A {law['A']} B {law['B']} alpha {law['alpha']} beta {law['beta']}",
            )
        )
    draw(out, columns, rows)
    followed = found["laws"][0]["title"]
    line = (
        f"{followed} is followed; losses of two laws do not compare: each is of its own fit, and the smaller is not "
        "the better"
    )
    out.print(paragraph(line, out.width, "", 2), markup=False, soft_wrap=True)
    line = (
        f"planned: {format_count(found['parameters'])} parameters, {format_count(found['tokens'])} tokens "
        f"({found['tokens_per_parameter']:.1f} per parameter), expected loss {found['loss']:.3f} nats per token of the "
        "law's own data; the size is a shape's that exists, and the tokens are what the budget leaves it"
        + (" in whole steps, expected failures included" if found["gpu_days"] else "")
    )
    out.print(paragraph(line, out.width, "", 2), markup=False, soft_wrap=True)
