"""``toolkit/data/residuals/assumed.json``: written by ``python -m tests.residual_table``, and by ``make golden``.

It holds the residuals of every scored run of tests/published; a test compares it with what would be written now.
"""

from __future__ import annotations

import functools
from pathlib import Path

from toolkit.calibrate.residuals import residual_table
from toolkit.cli.validate_lookups import lookups
from toolkit.registry.calibrations import load_calibration
from toolkit.registry.residuals import load_residuals
from toolkit.residuals import ResidualTable, text
from toolkit.validate.evaluated import Evaluated, evaluated, jobs_of
from toolkit.validate.rows import Row, read

ROOT = Path(__file__).resolve().parent.parent
RUNS = (ROOT / "tests/published/runs.csv", ROOT / "tests/published/further_runs.csv")
TABLE = ROOT / "toolkit/data/residuals/assumed.json"


@functools.cache
def rows() -> tuple[Row, ...]:
    """Every published run that is shipped."""
    return tuple(row for path in RUNS for row in read(path.read_bytes(), path.name))


@functools.cache
def scored() -> Evaluated:
    """All of them under the shipped calibration."""
    found = lookups()
    return evaluated(jobs_of(rows(), found), found, load_calibration())


def generated() -> ResidualTable:
    """The table of the code as it is."""
    return residual_table(scored().scores, load_calibration().name)


def write() -> bool:
    """Write the table; whether it changed."""
    before, after = TABLE.read_bytes() if TABLE.is_file() else b"", text(generated()).encode()
    if before != after:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_bytes(after)
        load_residuals.cache_clear()
    return before != after


if __name__ == "__main__":
    print(f"{TABLE.relative_to(ROOT)} {'has changed' if write() else 'is as it was'}")
