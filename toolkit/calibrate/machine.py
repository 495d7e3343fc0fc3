"""Coefficients that one machine's own measurements give, and the lines that its kernel times lie on.

Pure: times in, numbers out. A coefficient is taken over only where the measurement lies within its plausible range;
what lies outside is told and stays as it was, for then something else than the coefficient is wrong (the data sheet,
a model too small to fill the device).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from toolkit.calibrate.robust import SPREAD
from toolkit.calibration import Calibration, MeasuredLink

PASSES = 30
DIGITS = 4


@dataclass(frozen=True)
class Line:
    """``seconds = sum of weight * column``: the weights, none below 0, and how far the times lie from it."""

    weights: tuple[float, ...]
    median_error: float  # |fitted / measured - 1|
    count: int


def line(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> Line:
    """Robust least squares of relative errors with weights of 0 or more.

    Times span decades, so errors are relative: each row is divided by its time. Rows far from the line weigh less
    (Cauchy's loss, as in :mod:`toolkit.calibrate.robust`). Of the subsets of columns whose weights all come out above 0
    the one with the least loss is taken, which for so few columns is the exact non-negative solution.
    """
    measured = np.asarray(seconds, dtype=float)
    rows = np.asarray(columns, dtype=float).T / measured[:, None]
    best: tuple[float, Any] | None = None
    for chosen in range(1, 2 ** rows.shape[1]):
        active = [j for j in range(rows.shape[1]) if chosen >> j & 1]
        weights = np.zeros(rows.shape[1])
        trust = np.ones(len(measured))
        for _ in range(PASSES):
            solved, *_ = np.linalg.lstsq(rows[:, active] * trust[:, None], trust, rcond=None)
            trust = 1.0 / np.sqrt(1.0 + ((rows[:, active] @ solved - 1.0) / SPREAD) ** 2)
        weights[active] = solved
        if (weights < 0.0).any():
            continue
        reached = float(np.log1p(((rows @ weights - 1.0) / SPREAD) ** 2).sum())
        if best is None or reached < best[0]:
            best = reached, weights
    found = np.zeros(rows.shape[1]) if best is None else best[1]
    error = float(np.median(np.abs(rows @ found - 1.0)))
    return Line(tuple(map(float, found)), error, len(measured))


def matmul_line(rows: Sequence[Mapping[str, float]], bandwidth: float) -> dict[str, float]:
    """Rate and start of products by T1, ``t = F/rate + bytes/bandwidth + launch``; the memory term is known.

    ``sustained_fraction`` is the rate of the product that ran for seconds over that of the line.
    """
    short = [row for row in rows if not row.get("sustained")]
    left = [max(row["seconds"] - row["moved_bytes"] / bandwidth, 0.05 * row["seconds"]) for row in short]
    found = line([[row["flop"] for row in short], [1.0] * len(short)], left)
    per_flop, launch = found.weights
    best = max(row["flop"] / row["seconds"] for row in short)
    rate = 1.0 / per_flop if per_flop else best
    long = next(row for row in rows if row.get("sustained"))
    computing = max(long["seconds"] - long["moved_bytes"] / bandwidth - launch, 0.05 * long["seconds"])
    return {
        "flop_per_second": rate,
        "sustained_fraction": long["flop"] / computing / rate,
        "launch_seconds": launch,
        "best_flop_per_second": best,
        "sustained_flop_per_second": long["flop"] / long["seconds"],
        "median_error": found.median_error,
    }


def collective_lines(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Latency and bytes/s that a rank sends, ``t = latency + sent/bandwidth``, of each operation."""
    found = []
    for name in dict.fromkeys(row["operation"] for row in rows):
        own = [row for row in rows if row["operation"] == name]
        fitted = line([[row["sent_bytes"] for row in own], [1.0] * len(own)], [row["seconds"] for row in own])
        per_byte, latency = fitted.weights
        found.append(
            {
                "operation": name,
                "ranks": own[0]["ranks"],
                "bytes_per_second": 1.0 / per_byte if per_byte else 0.0,
                "latency_seconds": latency,
                "median_error": fitted.median_error,
            }
        )
    return found


def link_line(rows: Sequence[Mapping[str, Any]]) -> MeasuredLink | None:
    """Collectives by C2 to C5 with one start: a gather pays it once, an all-reduce twice; None without both.

    Without a bandwidth that is above 0 (all messages too small to show one) there is no line either.
    """
    gathers = [float(row["operation"] == "all_gather") for row in rows]
    sent = [float(row["sent_bytes"]) for row in rows]
    if not 0.0 < sum(gathers) < len(rows):
        return None
    columns = [
        [each * gather for each, gather in zip(sent, gathers, strict=True)],
        [each * (1.0 - gather) for each, gather in zip(sent, gathers, strict=True)],
        [2.0 - gather for gather in gathers],
    ]
    ring, all_reduce, start = line(columns, [row["seconds"] for row in rows]).weights
    if not (ring and all_reduce):
        return None
    return MeasuredLink(
        ring_bytes_per_second=1.0 / ring,
        all_reduce_bytes_per_second=1.0 / all_reduce,
        start_seconds=start,
        ranks=int(rows[0]["ranks"]),
    )


def traffic_rate(rows: Sequence[Mapping[str, Any]]) -> float:
    """Bytes/s of the copy and the addition together: all bytes over all seconds."""
    return float(sum(row["moved_bytes"] for row in rows) / sum(row["seconds"] for row in rows))


def measured_calibration(
    stated: Calibration, measured: Mapping[str, float], name: str, source: str
) -> tuple[Calibration, tuple[str, ...]]:
    """The calibration with what was measured, and a sentence for each measurement that was not taken over."""
    coefficients, refused = dict(stated.coefficients), []
    for each, value in measured.items():
        before = coefficients[each]
        rounded = float(f"{value:.{DIGITS}g}")
        if not before.low <= rounded <= before.high:  # also where it is no number
            refused.append(
                f"{each} would be {rounded:g}, outside its plausible range of {before.low:g} to {before.high:g}:"
                f" it stays {before.value:g} ({before.status})"
            )
            continue
        coefficients[each] = msgspec.structs.replace(
            before, value=rounded, status="measured", source=source, standard_error=0.0, runs=0, sources=()
        )
    taken = sum(row.source == source for row in coefficients.values())
    summary = f"{taken} of {len(coefficients)} coefficients {source}, the others as in {stated.name}"
    found = Calibration(name=name, summary=summary, coefficients=coefficients, machine=stated.machine)
    return found, tuple(refused)
