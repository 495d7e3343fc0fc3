"""Budgets of computation as people write them: FLOP, petaflop/s-days, GPU-days, GPU-hours."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from toolkit.errors import ToolkitError

LEAST_FLOP, MOST_FLOP = 1e16, 1e30  # outside, no law was ever near
MOST_GPU_SECONDS = 1e15
DAY, HOUR = 86400.0, 3600.0
_PREFIX = {"": 1.0, "t": 1e12, "p": 1e15, "e": 1e18, "z": 1e21, "y": 1e24}
_GPU_TIME = {"days": DAY, "day": DAY, "d": DAY, "hours": HOUR, "hour": HOUR, "h": HOUR}
_BUDGET = re.compile(
    r"\s*(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*|(?=\.))(?:\.[0-9]*)?(?:e\+?[0-9]{1,3})?)"
    r"\s*(?P<unit>[a-z][a-z /\-]*)?\s*"
)
_REMEDY = "write FLOP (1e24), or time on the cluster (2000 GPU-days, 50000 GPU-hours)"


class Budget(NamedTuple):
    """One of the two is 0: FLOP, or seconds of one GPU."""

    flop: float = 0.0
    gpu_seconds: float = 0.0


def parse_budget(text: str) -> Budget:
    """``1e24``, ``5.76e23 FLOP``, ``3.5 ZFLOP``, ``3640 PF-days``, ``2000 GPU-days``, ``1.5e6 GPU-hours``.

    Raises ToolkitError for anything else, for a bare small number (GPU-days or FLOP?), and for what is out of range.

    >>> parse_budget("1e24"), parse_budget("10 GPU-days").gpu_seconds, parse_budget("1e6 PF-days").flop
    (Budget(flop=1e+24, gpu_seconds=0.0), 864000.0, 8.64e+25)
    """
    written = text.strip()[:80]
    match = _BUDGET.fullmatch(written.casefold())
    try:
        value = float(re.sub("[,_]", "", match["number"])) if match else math.nan
    except ValueError:  # a lone "."
        value = math.nan
    if match is None or math.isnan(value):
        raise ToolkitError(f"budget {written!r} is not understood", remedy=_REMEDY)
    unit = re.sub(r"[\s\-]+", "", match["unit"] or "")
    gpu = re.fullmatch(r"(?:gpu|accelerator|card)(days?|hours?|d|h)", unit)
    if gpu:
        return Budget(gpu_seconds=_within(value * _GPU_TIME[gpu[1]], HOUR, MOST_GPU_SECONDS, written))
    rate_days = re.fullmatch(r"([tpezy])f(?:lops?|lop/s)?(?:/s)?days?", unit)
    if rate_days:
        return Budget(flop=_within(value * _PREFIX[rate_days[1]] * DAY, LEAST_FLOP, MOST_FLOP, written))
    plain = re.fullmatch(r"([tpezy]?)flops?", unit)
    if plain is None and unit:
        raise ToolkitError(f"budget {written!r} has the unknown unit {match['unit'].strip()!r}", remedy=_REMEDY)
    if not unit and 0.0 < value < LEAST_FLOP:
        raise ToolkitError(
            f"budget {written!r} is little as FLOP: a unit is missing", remedy=f"write {written} GPU-days, or 1e24 FLOP"
        )
    return Budget(flop=_within(value * _PREFIX[plain[1] if plain else ""], LEAST_FLOP, MOST_FLOP, written))


def _within(value: float, least: float, most: float, written: str) -> float:
    if not least <= value <= most:
        raise ToolkitError(f"budget {written!r} is out of range", remedy=_REMEDY)
    return value
