"""What each scaling law makes of a budget, with its constants."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit.report.terminal import paragraph
from toolkit.units import format_count


def laws(out: Console, found: dict[str, Any]) -> None:
    """A line for each law, then what is planned; ``found`` is ``compute_optimal`` of the JSON document."""
    budget = f"{found['flop']:.4g} FLOP"
    if found["gpu_days"]:
        budget = f"{found['gpu_days']:,.4g} GPU-days, at the rate of the plan below {budget}"
    out.print(Text(f"compute-optimal for {budget} = 6 x parameters x tokens", style="bold"))
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("parameters", "tokens", "tokens per\nparameter", "loss"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("law", justify="left")
    drawn.add_column("loss = E + A/N^alpha + B/D^beta", justify="left", no_wrap=True)
    for law in found["laws"]:
        best = law["optimum"]
        drawn.add_row(
            format_count(best["parameters"]),
            format_count(best["tokens"]),
            f"{best['tokens_per_parameter']:.1f}",
            f"{best['loss']:.3f}",
            Text(law["title"]),
            f"E {law['E']} A {law['A']} B {law['B']} alpha {law['alpha']} beta {law['beta']}",
        )
    out.print(drawn)
    line = (
        f"planned: {format_count(found['parameters'])} parameters, {format_count(found['tokens'])} tokens "
        f"({found['tokens_per_parameter']:.1f} per parameter), expected loss {found['loss']:.3f} nats per token of the "
        "law's own data"
    )
    out.print(paragraph(line, out.width, "", 2), markup=False, soft_wrap=True)
