"""Residual tables: what error bars are read from, ``data/residuals/<calibration>.json``."""

from __future__ import annotations

import functools

import msgspec

from toolkit.errors import ToolkitError
from toolkit.registry import files
from toolkit.residuals import FEATURES, ResidualTable

USUAL = "assumed"


@functools.lru_cache(maxsize=4)
def load_residuals(calibration: str = USUAL) -> ResidualTable:
    """The table of a calibration, runs in the order of their residuals; where it has none, that of ``assumed``.

    The user's folder comes first. Raises ToolkitError for a file that is no such table.
    """
    name = f"{files.normal(calibration)}.json"
    folders = (files.user_folder(), files.SHIPPED)
    found = [path for folder in folders if (path := folder / "residuals" / name).is_file()]
    path = found[0] if found else files.SHIPPED / "residuals" / f"{USUAL}.json"
    try:
        table = msgspec.json.decode(files.contents(path), type=ResidualTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise ToolkitError(f"{path}: {error}", remedy="write it again with toolkit validate --residuals") from error
    points = (run.point for values in (table.step_time, table.peak_memory) for run in values.runs)
    if table.features != FEATURES or any(len(point) != len(FEATURES) for point in points):
        raise ToolkitError(
            f"{path} has other coordinates than this toolkit compares", remedy="write it again: toolkit validate"
        )
    return msgspec.structs.replace(table, step_time=table.step_time.ordered(), peak_memory=table.peak_memory.ordered())
