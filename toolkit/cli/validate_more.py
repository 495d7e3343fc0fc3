"""What ``toolkit validate`` does beyond comparing: fits, the experts' list, the residual table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.calibration import Calibration
    from toolkit.validate.job import Job, Lookups
    from toolkit.validate.rows import Row

Told = Callable[[str], None]


def refuse(target: str, force: bool) -> None:
    """Before minutes of work: raises ToolkitError where the file cannot be written or exists."""
    path = Path(target)
    if not path.name or path.is_dir():
        raise ToolkitError(f"{target!r} is not the name of a file", remedy="name a file that can be written")
    if path.exists() and not force:
        raise ToolkitError(f"{target} exists", remedy="use --force to replace it")


def jobs_that_can_run(rows: Sequence[Row], lookups: Lookups) -> list[Job]:
    """The rows that are jobs."""
    from toolkit.validate.evaluated import jobs_of
    from toolkit.validate.job import Job

    return [job for job in jobs_of(rows, lookups) if isinstance(job, Job)]


def fitted(
    rows: Sequence[Row], runs: str, lookups: Lookups, calibration: Calibration, target: str | None, told: Told
) -> dict[str, Any]:
    """Fit on the rows, write the calibration if there is a ``target``, and tell how the fit travels."""
    from toolkit.calibrate.travel import document, fits
    from toolkit.calibrate.writing import fitted_calibration, text
    from toolkit.cli.files import write_files

    found = fits(jobs_that_can_run(rows, lookups), calibration, told)
    if not found:
        raise ToolkitError(f"{runs} has no three runs to fit on", remedy="give more runs with a time or a peak")
    if target is not None:
        path = Path(target)
        made = fitted_calibration(path.stem, Path(runs).name, calibration, [each for _, each in found.values()])
        write_files(path.parent, {path.name: text(made)}, force=True)
        told(f"wrote {target}; use it with --calibration {target}")
    return {subject: document(problem, each) for subject, (problem, each) in found.items()}


def experts(rows: Sequence[Row], lookups: Lookups, calibration: Calibration, told: Told) -> dict[str, Any]:
    """The planner's own choice beside each published strategy."""
    from toolkit.validate.experts import experts

    return experts(jobs_that_can_run(rows, lookups), calibration, told)


def write_residuals(rows: Sequence[Row], lookups: Lookups, calibration: Calibration, target: str) -> None:
    """Write the residual table of the rows; in ``residuals/`` of the user's data folder it makes the intervals."""
    from toolkit.calibrate.residuals import residual_table
    from toolkit.cli.files import write_files
    from toolkit.residuals import text
    from toolkit.validate.evaluated import evaluated, jobs_of

    path = Path(target)
    scores = evaluated(jobs_of(rows, lookups), lookups, calibration).scores
    write_files(path.parent, {path.name: text(residual_table(scores, calibration.name))}, force=True)
