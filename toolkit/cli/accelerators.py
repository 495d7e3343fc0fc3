"""``toolkit accelerators``: list accelerators, or show one with the source of each figure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.lines import wrapped

if TYPE_CHECKING:
    from toolkit.cluster import Accelerator


@click.command("accelerators")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List accelerators, or show one with the source of each figure.

    \b
    toolkit accelerators
    toolkit accelerators "NVIDIA H100 80GB HBM3"
    """
    from toolkit.registry.accelerators import accelerator_names, load_accelerator

    if name is not None:
        accelerator = load_accelerator(name)
        if as_json:
            click.echo(json.dumps(document(accelerator), indent=2, allow_nan=False))
        else:
            _show(accelerator)
        return
    found = [load_accelerator(each) for each in accelerator_names()]
    if as_json:
        click.echo(json.dumps([document(each) for each in found], indent=2, allow_nan=False))
    else:
        _list(found)


def document(accelerator: Accelerator) -> dict[str, Any]:
    """The JSON form: fields in SI units, what the hardware can do, and which figures are assumed."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(accelerator)
    return values | {
        "supports_bf16": accelerator.supports_bf16,
        "supports_fp8": accelerator.supports_fp8,
        "assumed": list(accelerator.assumed),
    }


def figures(accelerator: Accelerator) -> list[tuple[str, str, str]]:
    """Rows of label, value and source; the source of an assumption begins with ``assumed``."""
    from toolkit.units import format_bytes, format_rate

    sources = accelerator.sources
    rows = [("usable memory", format_bytes(accelerator.memory_bytes), sources.get("memory_bytes", ""))]
    if accelerator.driver_total_bytes:
        total = format_bytes(accelerator.driver_total_bytes)
        rows.append(("total as the driver prints it", total, sources.get("driver_total_bytes", "")))
    bandwidth = format_rate(accelerator.memory_bandwidth_bytes_per_second)
    rows.append(("memory bandwidth", bandwidth, sources.get("memory_bandwidth_bytes_per_second", "")))
    for field, label in (("peak_flop_per_second", "dense peak"), ("achievable_flop_per_second", "measured at best")):
        for dtype, rate in getattr(accelerator, field).items():
            source = sources.get(f"{field}.{dtype}", sources.get(field, ""))
            rows.append((f"{label} {dtype}", f"{rate / 1e12:g} TFLOP/s", source))
    if accelerator.host_link_bytes_per_second:
        link = f"{format_rate(accelerator.host_link_bytes_per_second)} each way"
        rows.append(("link to the host", link, sources.get("host_link_bytes_per_second", "")))
    if accelerator.price_per_hour:
        rows.append(("price", f"{accelerator.price_per_hour:g} per hour", sources.get("price_per_hour", "")))
    return rows


def echo_figures(rows: list[tuple[str, str, str]]) -> None:
    """Print rows of label, value and source in columns."""
    from toolkit.cluster import is_assumed

    wide = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for label, value, source in rows:
        shown = source if not is_assumed(source) or source.startswith("assumed") else "assumed"
        click.echo(wrapped(f"  {label:<{wide[0]}}  {value:<{wide[1]}}  ", shown))


def _show(accelerator: Accelerator) -> None:
    click.echo(f"{accelerator.name}: {accelerator.vendor}, architecture {accelerator.architecture}")
    echo_figures(figures(accelerator))
    if not accelerator.supports_bf16:
        click.echo("  no bf16: use fp16 with loss scaling")
    if accelerator.aliases:
        click.echo(wrapped("  also known as ", ", ".join(accelerator.aliases)))
    if accelerator.notes:
        click.echo(wrapped("  ", accelerator.notes))


def _list(found: list[Accelerator]) -> None:
    wide = max(len(each.name) for each in found)
    click.echo(f"{'name':<{wide}}  {'architecture':<12}  {'usable':>10}  {'bandwidth':>10}  {'bf16':>7}  {'fp8':>7}")
    for each in found:
        rates = [each.peak_flop_per_second.get(dtype, 0.0) / 1e12 for dtype in ("bf16", "fp8")]
        shown = [f"{rate:g}" if rate else "-" for rate in rates]
        line = (
            f"{each.name:<{wide}}  {each.architecture:<12}  {each.memory_bytes / 2**30:>6.2f} GiB  "
            f"{each.memory_bandwidth_bytes_per_second / 1e9:>5.0f} GB/s  {shown[0]:>7}  {shown[1]:>7}  "
        )
        click.echo(wrapped(line, "some figures assumed" if each.assumed else ""))
    click.echo(
        wrapped("", "rates are dense TFLOP/s per device; toolkit accelerators NAME shows every figure with its source")
    )
