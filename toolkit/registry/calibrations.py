"""Named calibrations: the coefficients of ``data/calibration/<name>.toml``."""

from __future__ import annotations

import functools

import msgspec

from toolkit.calibration import Calibration
from toolkit.errors import ToolkitError
from toolkit.registry import files


@functools.lru_cache(maxsize=8)
def load_calibration(name: str = "assumed") -> Calibration:
    """The calibration ``name``; raises ToolkitError (with did-you-mean) for an unknown or malformed one."""
    entry = files.get("calibration", name)
    try:
        return msgspec.convert(entry.values, Calibration)
    except msgspec.ValidationError as error:
        raise ToolkitError(
            f"{entry.path}: {error}", remedy="a coefficient has value, unit, meaning, low, high, status and source"
        ) from error
