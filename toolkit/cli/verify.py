"""``toolkit verify``: the real framework, dry, beside the prediction."""

from __future__ import annotations

import sys
from typing import Any

import click

from toolkit.cli.options import time_limit


@click.command("verify")
@click.argument("plan_file", metavar="PLAN.json")
@click.option("--layers", type=click.IntRange(min=1), metavar="N", help="Only the first N layers (default: all).")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0, min_open=True),
    default=0.03,
    show_default=True,
    help="Largest relative error of a part.",
)
@time_limit(600.0, "For each rank.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: ranks, collectives, findings, seconds.")
def command(plan_file: str, layers: int | None, tolerance: float, time_limit: float, as_json: bool) -> None:
    """Run the framework of PLAN.json without a GPU and count bytes, beside the predicted ones.

    DeepSpeed, FSDP2 or megatron-core itself, at the plan's world size, on fake tensors: forward, backward and
    optimizer step of one rank of each kind, each in a process of its own. The exit code is 1 where a part is
    predicted wrong by more than the tolerance.

    \b
    toolkit verify plan/plan.json
    toolkit verify plan/plan.json --layers 4 --json
    """
    from toolkit.cli.files import read_plan
    from toolkit.registry.calibrations import load_calibration
    from toolkit.verify.run import verify

    plan = read_plan(plan_file)
    found = verify(plan, load_calibration(plan.calibration), layers or 0, tolerance, time_limit)
    if as_json:
        import json

        click.echo(json.dumps(found, allow_nan=False))
    else:
        _show(found)
    if found["findings"]:
        sys.exit(1)


def _show(found: dict[str, Any]) -> None:
    from toolkit.units import format_bytes, format_seconds

    click.echo(
        f"{found['strategy']}: {found['layers']} layers, one rank of each kind of {found['world_size']},"
        f" {format_seconds(found['seconds'])}"
    )
    click.echo(f"{'rank':<24}{'part':<12}{'predicted':>14}{'counted':>14}{'error':>10}")
    for row in found["ranks"]:
        name = f"{row['kind']} ({row['rank']})"
        for part, counted in row["counted_bytes"].items():
            predicted, error = row["predicted_bytes"][part], row["relative_errors"][part]
            click.echo(
                f"{name:<24}{part:<12}{format_bytes(predicted):>14}{format_bytes(counted):>14}{100.0 * error:>+9.2f}%"
            )
            name = ""
    click.echo(f"\n{'sent in a step':<24}{'axis':<12}{'predicted':>14}{'counted':>14}{'error':>10}")
    for axis, one in found["communication"].items():
        click.echo(
            f"{'':<24}{axis:<12}{format_bytes(one['predicted_bytes']):>14}"
            f"{format_bytes(one['counted_bytes']):>14}{100.0 * one['relative_error']:>+9.2f}%"
        )
    click.echo(f"\n{'collectives of a step':<30}{'ranks':>6}  {'type':<10}{'calls':>6}{'bytes':>14}{'sent':>14}")
    for one in found["collectives"]:
        click.echo(
            f"{one['kind'] + ': ' + one['operation']:<30}{one['ranks']:>6}  {one['dtype']:<10}{one['calls']:>6}"
            f"{format_bytes(one['bytes']):>14}{format_bytes(one['sent_bytes']):>14}"
        )
    for assumption in found["assumptions"]:
        click.echo(f"assumed: {assumption}")
    for finding in found["findings"]:
        click.echo(f"above {100.0 * found['tolerance']:g}%: {finding}")
