"""Calibrations: by name out of ``data/calibration`` and the user's folder, or by the path of a file.

A file may leave coefficients out: they are those of the shipped ``assumed``, with their status.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec

from toolkit.calibration import STATUSES, Calibration
from toolkit.errors import Problems, ToolkitError
from toolkit.registry import files

USUAL = "assumed"
SHIPPED = files.SHIPPED / "calibration" / f"{USUAL}.toml"


@functools.lru_cache(maxsize=8)
def load_calibration(reference: str = USUAL) -> Calibration:
    """The calibration of that name, or of that file (a name with a slash or an ending of ``.toml``).

    Raises ToolkitError for one that is unknown (with did-you-mean) or malformed, with all problems: coefficients that
    no formula reads, values outside their range, a status that is none.
    """
    if "/" in reference or reference.endswith(".toml"):
        path = Path(reference)
        found = _checked(_read(path), path)
        return msgspec.structs.replace(found, path=str(path.absolute()))
    entry = files.get("calibration", reference)
    return _checked(entry.values, entry.path)


@functools.cache
def _shipped() -> Calibration:
    return _checked(_read(SHIPPED), SHIPPED)


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(files.contents(path).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # no text or no TOML are ValueErrors
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolkitError(
            f"calibration {path} cannot be read: {reason}",
            remedy="give a file as toolkit validate --fit writes it, or a name",
        ) from error


def _checked(values: dict[str, Any], path: Path) -> Calibration:
    try:
        found = msgspec.convert(values, Calibration)
    except msgspec.ValidationError as error:
        raise ToolkitError(
            f"{path}: {error}", remedy="a coefficient has value, unit, meaning, low, high, status and source"
        ) from error
    usual = found if path == SHIPPED else _shipped()
    with Problems() as problems:
        for name, each in found.coefficients.items():
            if name not in usual.coefficients:
                problems.add(f"{path}: no formula reads a coefficient {name!r}", _near(name, usual))
            if not each.low <= each.value <= each.high:  # also where one of them is no number
                problems.add(f"{path}: {name} is {each.value:g}, outside {each.low:g} to {each.high:g}", "correct it")
            if each.status not in STATUSES:
                problems.add(f"{path}: {name} has status {each.status[:40]!r}", f"it can be {', '.join(STATUSES)}")
    return msgspec.structs.replace(found, coefficients=usual.coefficients | found.coefficients)


def _near(name: str, usual: Calibration) -> str:
    import difflib

    close = difflib.get_close_matches(name, usual.coefficients, n=3, cutoff=0.6)
    return f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(usual.coefficients)}"
