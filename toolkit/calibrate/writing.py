"""A fitted calibration as a noun, and any calibration as the text of its TOML file."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from toolkit.calibrate.fit import Fit
from toolkit.calibration import Calibration, Coefficient, Machine

DIGITS = 4
LINK_FIELDS = ("ring_bytes_per_second", "all_reduce_bytes_per_second", "start_seconds")
LEAST_SOURCES = 2  # below, leaving one out leaves nothing


def fitted_calibration(name: str, runs: str, stated: Calibration, fits: Iterable[Fit]) -> Calibration:
    """The calibration with what was fitted; ``runs`` is the file that it was fitted on.

    What no run moves, or those of one source only, stays as it is stated, with its status.
    """
    coefficients = dict(stated.coefficients)
    for found in fits:
        for each, value in found.values.items():
            before = stated.coefficients[each]
            if len(found.sources_of[each]) >= LEAST_SOURCES:
                coefficients[each] = _fitted(before, value, found, each, runs)
    return Calibration(
        name=name, summary=f"Coefficients fitted on {runs}, the others as in {stated.name}", coefficients=coefficients
    )


def _fitted(before: Coefficient, value: float, found: Fit, name: str, runs: str) -> Coefficient:
    sources = found.sources_of[name]
    return msgspec.structs.replace(
        before,
        value=min(max(float(f"{value:.{DIGITS}g}"), before.low), before.high),
        status="fitted",
        source=f"{found.runs[name]} runs of {len(sources)} sources in {runs}; stated before: {before.value:g}",
        standard_error=float(f"{found.errors[name]:.2g}"),
        runs=found.runs[name],
        sources=sources,
    )


def text(calibration: Calibration) -> str:
    """The TOML of a calibration; reading it gives the same calibration."""
    lines = [f"name = {_quoted(calibration.name)}", f"summary = {_quoted(calibration.summary)}"]
    for name, each in calibration.coefficients.items():
        lines += ["", f"[coefficients.{name}]"]
        for field in each.__struct_fields__:
            value = getattr(each, field)
            if value or field in ("value", "low", "high"):
                lines.append(f"{field} = {_written(value)}")
    if calibration.machine is not None:
        lines += ["", *_machine_lines(calibration.machine)]
    return "\n".join(lines) + "\n"


def _machine_lines(machine: Machine) -> list[str]:
    lines = ["[machine]", f"accelerator = {_quoted(machine.accelerator)}", f"source = {_quoted(machine.source)}"]
    for field in ("launch_seconds", "memory_bytes_per_second"):
        if getattr(machine, field):
            lines.append(f"{field} = {_rounded(getattr(machine, field))}")
    if machine.matmul_flop_per_second:
        lines += ["", "[machine.matmul_flop_per_second]"]
        lines += [f"{name} = {_rounded(rate)}" for name, rate in machine.matmul_flop_per_second.items()]
    for name, link in machine.links.items():
        lines += ["", f"[machine.links.{_quoted(name)}]"]
        lines += [f"{field} = {_rounded(getattr(link, field))}" for field in LINK_FIELDS]
        lines.append(f"ranks = {link.ranks}")
    return lines


def _rounded(value: float) -> str:
    return repr(float(f"{value:.{DIGITS}g}"))


def _written(value: str | float | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_quoted, value))}]"
    return repr(value)


def _quoted(value: str) -> str:
    """A basic string of TOML: JSON's, with DEL escaped too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
