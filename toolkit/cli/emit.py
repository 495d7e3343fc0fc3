"""``toolkit emit``: the files of a plan, written again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.options import launcher_option
from toolkit.errors import Problems

if TYPE_CHECKING:
    from toolkit.plan import Plan


@click.command("emit")
@click.argument("plan_file", metavar="PLAN.json")
@click.option("--out", required=True, metavar="DIR", help="Directory for the files; made if it is missing.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@launcher_option
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def command(plan_file: str, out: str, force: bool, launcher: str, as_json: bool) -> None:
    """Write the configuration files and launch scripts of PLAN.json into DIR.

    DeepSpeed JSON, accelerate YAML or Megatron files, a torchrun script, a Slurm batch script, and the
    commands to start them (COMMANDS.txt). Give --force to write over the plan's own directory.
    """
    from toolkit.cli.files import read_plan, write_files
    from toolkit.emit.bundle import bundle
    from toolkit.emit.script import stop_note

    plan = read_plan(plan_file)
    # absolute, so that the job finds its files from whatever directory it is submitted in
    files = bundle(plan, str(Path(out).absolute()), launcher)
    _require_rules(plan)
    paths = write_files(out, files, force)
    if note := stop_note(plan):
        click.echo(f"note: {note}", err=True)
    if as_json:
        import json

        click.echo(json.dumps({"files": [str(path) for path in paths]}))
        return
    for path in paths:
        click.echo(path)


def _require_rules(plan: Plan) -> None:
    """A plan.json may have been edited: what its framework refuses is refused here, before a job is queued."""
    from toolkit.search.constraints import violated
    from toolkit.search.request import Request

    request = Request(model=plan.model, cluster=plan.cluster, workload=plan.workload)
    with Problems() as problems:
        for constraint, problem in violated(request, plan.strategy):
            if not constraint.advice:
                problems.add(problem.message, problem.remedy)
