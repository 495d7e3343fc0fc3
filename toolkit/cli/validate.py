"""``toolkit validate``: the planner's predictions beside measured runs."""

from __future__ import annotations

import functools
import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command("validate")
@click.argument("runs")
@click.option("--calibration", default="assumed", show_default=True, help="Coefficients to predict with: NAME or FILE.")
@click.option("--brief", is_flag=True, help="Print the totals only, not every source, framework and accelerator.")
@click.option(
    "--leave-one-source-out", is_flag=True, help="Fit without each source, and score that one; takes minutes."
)
@click.option(
    "--fit", "fit_to", metavar="FILE", help="Fit coefficients on the runs; write them for --calibration FILE."
)
@click.option(
    "--experts", is_flag=True, help="The planner's own choice beside every published strategy; takes minutes."
)
@click.option("--residuals", "residuals_to", metavar="FILE", help="Write the residuals that intervals are made of.")
@click.option("--force", is_flag=True, help="Let --fit and --residuals replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the summary, skipped rows, and each row's parts.")
def command(
    runs: str,
    calibration: str,
    brief: bool,
    leave_one_source_out: bool,
    fit_to: str | None,
    experts: bool,
    residuals_to: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compare predictions with the measured runs of a csv file (columns as in tests/published/runs.csv).

    Needed are the columns gpu, n_gpus, seq_len, a model (model, or layers, hidden and heads) and a measurement
    (step_time_s, tokens_per_s_per_gpu, peak_mem_gib or outcome); others may be blank or absent. A row that cannot be
    read is skipped with its reason.

    \b
    toolkit validate runs.csv
    toolkit validate runs.csv --json
    toolkit validate runs.csv --fit mine.toml
    """
    from toolkit.cli import validate_more
    from toolkit.cli.validate_lookups import lookups
    from toolkit.registry.calibrations import load_calibration
    from toolkit.registry.residuals import load_residuals
    from toolkit.validate.document import validate
    from toolkit.validate.rows import read

    for target in (fit_to, residuals_to):
        if target is not None:
            validate_more.refuse(target, force)
    coefficients = load_calibration(calibration)
    residuals = load_residuals(coefficients.name)
    rows, found_in = read(_contents(runs), runs), lookups()
    told: Callable[[str], None] = functools.partial(click.echo, err=True)
    found = validate(rows, found_in, coefficients, residuals, _progress())
    for note in found["notes"]:
        told(f"note: {note}")
    if leave_one_source_out or fit_to is not None:
        found["fit"] = validate_more.fitted(rows, runs, found_in, coefficients, fit_to, told)
    if experts:
        found["experts"] = validate_more.experts(rows, found_in, coefficients, told)
    if residuals_to is not None:
        validate_more.write_residuals(rows, found_in, coefficients, residuals_to)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    else:
        from toolkit.report import validation
        from toolkit.report.terminal import console

        validation.show(console(), found, brief)


def _contents(path: str) -> bytes:
    from toolkit.errors import ToolkitError
    from toolkit.registry import files

    try:
        return files.contents(path, 256 * 2**20)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolkitError(f"{path} cannot be read: {reason}", remedy="give a csv file of measured runs") from error


def _progress() -> Callable[[int, int], None] | None:
    """Rows that are behind, every hundred on one line of a terminal; nothing elsewhere."""
    stream = sys.stderr
    if not stream.isatty():
        return None

    def done(rows: int, of: int) -> None:
        if of > 200 and rows % 100 == 0:
            stream.write(f"\r{rows:,} of {of:,} rows")
        if of > 200 and rows == of - 1:
            stream.write("\r\x1b[K")
        stream.flush()

    return done
