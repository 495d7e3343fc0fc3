"""The text of ``toolkit profile``: lines from its document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolkit.units import format_seconds


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Every figure that was predicted, beside the measured one."""
    step = found["step"]
    yield f"{found['recipe']} ({found['program']}, {found['precision']}) on {found['device']}: {found['strategy']}"
    yield (
        f"{found['steps']} steps of {found['tokens_per_step']:,} tokens timed, {found['warm_up_steps']} dropped before:"
        f" {found['tokens_per_second']:,.0f} tokens/s; {format_seconds(step['fastest_seconds'])} to"
        f" {format_seconds(step['slowest_seconds'])} a step;"
        f" {100 * found['data_loading_share']:.1f} % of it data loading"
    )
    yield ""
    yield f"{'one step':<30}{'predicted':>14}{'measured':>14}"
    for row in step["parts"]:
        yield f"{row['name']:<30}{_seconds(row['predicted_seconds']):>14}{_seconds(row['measured_seconds']):>14}"
    whole = f"{_seconds(step['predicted_seconds']):>14}{_seconds(step['measured_seconds']):>14}"
    yield f"{'whole step (median)':<30}{whole}"
    yield f"{'with this calibration':<30}{_seconds(step['calibrated_seconds']):>14}"
    yield ""
    yield f"{'memory':<30}{'predicted':>14}{'measured':>14}"
    for row in found["memory"]:
        yield f"{row['name']:<30}{_mib(row['predicted_bytes']):>14}{_mib(row['measured_bytes']):>14}"
    yield f"{'gradients at the update':<30}{'':>14}{_mib(found['gradients_at_update_bytes']):>14}"
    yield ""
    yield from _kernels(found["kernels"])
    yield ""
    calibration = found["calibration"]
    yield f"calibration: {len(calibration['measured'])} measured, {calibration['as_before']} as before"
    for name, row in calibration["measured"].items():
        yield f"  {name:<30}{row['value']:>10.4g}  was {row['before']:.4g} ({row['unit']})"
    for sentence in calibration["not_taken_over"]:
        yield f"  {sentence}"
    for sentence in found["notes"]:
        yield f"note: {sentence}"


def _kernels(kernels: dict[str, Any]) -> Iterator[str]:
    yield f"{'matrix product, ' + kernels['precision']:<30}{'TFLOP/s':>14}{'of the peak':>14}"
    for row in kernels["matmul"]:
        name = f"{row['side']:.0f} x {row['side']:.0f}" + (", sustained" if row.get("sustained") else "")
        yield f"{name:<30}{row['flop'] / row['seconds'] / 1e12:>14.3f}{100 * row['fraction_of_peak']:>13.0f}%"
    line = kernels["matmul_line"]
    yield (
        f"  fitted: {line['flop_per_second'] / 1e12:.3f} TFLOP/s and {1e6 * line['launch_seconds']:.1f} us to start,"
        f" median error {100 * line['median_error']:.0f} %"
    )
    for row in kernels["traffic"]:
        yield f"{'memory, ' + row['kernel']:<30}{row['moved_bytes'] / row['seconds'] / 1e9:>9.1f} GB/s"
    for row in kernels["collective_lines"]:
        name = f"{row['operation']}, {row['ranks']} ranks"
        yield (
            f"{name:<30}{row['bytes_per_second'] / 1e9:>9.2f} GB/s sent,"
            f" {1e6 * row['latency_seconds']:.0f} us to start, median error {100 * row['median_error']:.0f} %"
        )
    if not kernels["collective_lines"]:
        yield "collectives: not timed, this machine shows one device"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1.0 else f"{value:.3f} s"


def _mib(value: float) -> str:
    return f"{value / 2**20:.2f} MiB" if value < 2**30 else f"{value / 2**30:.2f} GiB"
