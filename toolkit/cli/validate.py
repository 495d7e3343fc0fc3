"""``toolkit validate``: the planner's predictions beside measured runs."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from toolkit.cluster import Accelerator, ClusterSpec
    from toolkit.model import ModelSpec
    from toolkit.validate.job import Lookups


@click.command("validate")
@click.argument("runs")
@click.option("--calibration", default="assumed", show_default=True, help="Coefficients to predict with: NAME or FILE.")
@click.option("--brief", is_flag=True, help="Print the totals only, not every source, framework and accelerator.")
@click.option("--leave-one-source-out", is_flag=True, help="Fit without each source, and score that one (minutes).")
@click.option(
    "--fit", "fit_to", metavar="FILE", help="Fit coefficients on the runs; write them for --calibration FILE."
)
@click.option("--experts", is_flag=True, help="Set the planner's own choice beside every published strategy (minutes).")
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

    \b
    toolkit validate runs.csv
    toolkit validate runs.csv --json
    toolkit validate runs.csv --fit mine.toml
    """
    from toolkit.cli import validate_more
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
    found = validate(rows, found_in, coefficients, residuals)
    told = functools.partial(click.echo, err=True)
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


def lookups() -> Lookups:
    """What the rows are looked up in: the registry, each name once."""
    from toolkit.registry import models
    from toolkit.validate.job import Lookups
    from toolkit.validate.shape import Models

    @functools.cache
    def find(name: str) -> ModelSpec | None:
        return models.load_model(name) if name and models.find(name) is not None else None

    @functools.cache
    def every() -> tuple[ModelSpec, ...]:
        return tuple(models.load_model(name) for name in models.names())

    return Lookups(Models(find, every), functools.cache(_cluster))


def _cluster(gpu: str, memory_gb: float | None, gpus: int, per_node: int | None) -> ClusterSpec:
    """Usual nodes of the accelerator that the row names.

    Where a name fits several and the memory is not stated, the planner takes the least, to be safe; a published run
    is known to have fitted, and comes from the strongest card of that name: most FLOP/s, then bandwidth and memory.
    """
    from toolkit.errors import ToolkitError
    from toolkit.registry.accelerators import accelerator_names, could_mean, load_accelerator, match_accelerator
    from toolkit.registry.clusters import resolve_cluster

    try:
        match = match_accelerator(f"{gpu} {memory_gb:g}GB" if memory_gb else gpu)
    except ToolkitError:  # the names of most cards do not say how much memory they have
        match = match_accelerator(gpu)
    name = match.name
    if match.note:
        cards = [load_accelerator(each) for each in accelerator_names() if could_mean(gpu, each)]
        name = max(cards, key=_strength).name
    return resolve_cluster(gpus, accelerator=name, gpus_per_node=min(per_node, gpus) if per_node else None)


def _strength(card: Accelerator) -> tuple[float, float, float]:
    return max(card.peak_flop_per_second.values()), card.memory_bandwidth_bytes_per_second, card.memory_bytes
