"""Calibration: the few physical coefficients that estimates need beyond data sheets.

Every coefficient is a row of ``data/calibration/*.toml`` with its value, unit, meaning, plausible
range, and whether it was fitted (on which runs) or is assumed.
"""

from __future__ import annotations

import msgspec


class Coefficient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number with its meaning. ``status`` is ``assumed`` or ``fitted``."""

    value: float
    unit: str
    meaning: str
    low: float
    high: float
    status: str = "assumed"
    source: str = ""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named set of coefficients. ``calibration["context_bytes"]`` is the value."""

    name: str
    summary: str
    coefficients: dict[str, Coefficient]

    def __getitem__(self, name: str) -> float:
        return self.coefficients[name].value
