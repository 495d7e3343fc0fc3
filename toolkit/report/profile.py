"""The text of ``toolkit profile``: lines of at most 80 characters from its document."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from toolkit.units import format_seconds

WIDTH = 80
HEAD = 28  # of a table: what a row is about


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Every figure that was predicted, beside the measured one."""
    step = found["step"]
    yield from _wrapped(
        f"{found['recipe']} ({found['program']}, {found['precision']}) on one {_device(found)}: {found['strategy']}"
    )
    yield from _wrapped(
        f"{found['tokens_per_second']:,.0f} tokens/s: {found['steps']} steps of {found['tokens_per_step']:,} tokens"
        f" timed after {found['warm_up_steps']} to warm up, {format_seconds(step['fastest_seconds'])} to"
        f" {format_seconds(step['slowest_seconds'])} a step"
    )
    yield f"data loading: {100 * found['data_loading_share']:.1f}% of the time"
    yield ""
    yield _row("one step", "predicted", "calibrated", "measured")
    whole = {"name": "whole step (median)"} | {name: value for name, value in step.items() if name != "parts"}
    for row in [*step["parts"], whole]:
        times = (_seconds(row[f"{name}_seconds"]) for name in ("predicted", "calibrated", "measured"))
        yield _row(row["name"], *times)
    yield ""
    yield _row("memory", "predicted", "", "measured")
    for row in found["memory"]:
        yield _row(row["name"], _mib(row["predicted_bytes"]), "", _mib(row["measured_bytes"]))
    yield _row("gradients at the update", "", "", _mib(found["gradients_at_update_bytes"]))
    yield ""
    yield from _kernels(found["kernels"])
    yield ""
    yield from _calibration(found["calibration"])
    for sentence in found["notes"]:
        yield from _wrapped(f"note: {sentence}")


def _device(found: dict[str, Any]) -> str:
    return f"process without a GPU ({found['device']})" if found["kind"] == "cpu" else str(found["device"])


def _kernels(kernels: dict[str, Any]) -> Iterator[str]:
    yield _row(f"matrix product, {kernels['precision']}", "TFLOP/s", "of the peak")
    for row in kernels["matmul"]:
        name = f"{row['side']:.0f} x {row['side']:.0f}" + (", sustained" if row.get("sustained") else "")
        yield _row(name, f"{row['flop'] / row['seconds'] / 1e12:.3f}", f"{100 * row['fraction_of_peak']:.0f}%")
    line = kernels["matmul_line"]
    yield (
        f"  fitted: {line['flop_per_second'] / 1e12:.3f} TFLOP/s and {1e6 * line['launch_seconds']:.1f} us to start,"
        f" median error {100 * line['median_error']:.0f}%"
    )
    for row in kernels["traffic"]:
        yield _row(f"memory, {row['kernel']}", f"{row['moved_bytes'] / row['seconds'] / 1e9:.1f} GB/s")
    for row in kernels["collective_lines"]:
        rate = f"{row['bytes_per_second'] / 1e9:.2f} GB/s"
        yield _row(f"{row['operation']}, {row['ranks']} ranks", rate, f"{1e6 * row['latency_seconds']:.0f} us to start")
    if not kernels["collective_lines"]:
        yield "collectives: not timed, this machine shows one device"


def _calibration(calibration: dict[str, Any]) -> Iterator[str]:
    machine = calibration["machine"]
    yield f"calibration: {len(calibration['measured'])} coefficients measured, {calibration['as_before']} as before"
    for name, row in calibration["measured"].items():
        yield f"  {name:<28}{row['value']:>10.4g}, was {row['before']:.4g} ({row['unit']})"
    parts = [f"{name} products" for name in machine["matmul_flop_per_second"]]
    parts += ["memory bandwidth"] * bool(machine["memory_bytes_per_second"])
    parts += [f"collectives over {name}" for name in machine["links"]]
    yield from _wrapped(f"  and the machine's own rates for accelerator {machine['accelerator']}: {', '.join(parts)}")
    for sentence in calibration["not_taken_over"]:
        yield from _wrapped(f"  {sentence}")


def _row(name: str, *cells: str) -> str:
    return (f"{name:<{HEAD}}" + "".join(f"{cell:>17}" for cell in cells)).rstrip()


def _wrapped(sentence: str) -> list[str]:
    indent = "  " if sentence.startswith("  ") else ""
    return textwrap.wrap(sentence, WIDTH, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1.0 else f"{value:.3f} s"


def _mib(value: float) -> str:
    return f"{value / 2**20:.2f} MiB" if value < 2**30 else f"{value / 2**30:.2f} GiB"
