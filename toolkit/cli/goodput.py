"""``toolkit goodput``: where the time of a run went, over all of its restarts."""

from __future__ import annotations

import click


@click.command("goodput")
@click.argument("run_dir", metavar="RUN_DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(run_dir: str, as_json: bool) -> None:
    """Show which share of the time of RUN_DIR went into steps that were kept, and what took the rest.

    \b
    toolkit goodput runs/tiny/run
    """
    from pathlib import Path

    from toolkit.cli.files import inside
    from toolkit.runtime.goodput import PARTS, of_run
    from toolkit.runtime.telemetry import RUN

    found = of_run(run_dir if (Path(run_dir) / RUN).exists() else inside(run_dir) or run_dir)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(found).decode())
        return
    from toolkit.units import format_seconds

    steps, starts = _plural(found.steps, "step"), _plural(found.starts, "start")
    click.echo(
        f"goodput {100.0 * found.goodput:.1f}% of {format_seconds(found.total_seconds)}: {steps},"
        f" {found.repeated_steps:,} of them made again, {starts}"
    )
    for part in PARTS:
        seconds = getattr(found, part)
        name = part.removesuffix("_seconds").replace("_", " ")
        click.echo(f"  {name:<12}{format_seconds(max(seconds, 0.0)):>12}{100.0 * seconds / found.total_seconds:>8.1f}%")
        told = sum(found.productive_by_part.values())
        if part == "productive_seconds" and told:
            shares = [f"{name.replace('_', '-')} {100 * s / told:.1f}%" for name, s in found.productive_by_part.items()]
            click.echo(f"    {', '.join(shares)}")


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' if count != 1 else ''}"
