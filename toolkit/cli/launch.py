"""``toolkit launch``: write the files of a recipe or plan and start them, here or with sbatch."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import launcher_option, strategy_options
from toolkit.errors import ToolkitError
from toolkit.strategy import FRAMEWORKS
from toolkit.workload import MOST_SEQUENCES

if TYPE_CHECKING:
    from toolkit.plan import Plan


OF_A_RECIPE = ("gpus", "cluster", "accelerator", "gpus_per_node", "global_batch", "dataset")


@click.command("launch")
@click.argument("what", metavar="RECIPE|PLAN.json")
@click.argument("program_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")
@click.option("--gpus", metavar="N", help="For a recipe: GPUs in all, or nodes x GPUs of a node: 8x8.")
@click.option("--cluster", metavar="NAME|FILE", help="A named cluster or your own TOML.")
@click.option("--accelerator", metavar="NAME", help="e.g. h100, a100-80gb, mi300x.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), help="Where it differs from the cluster's.")
@click.option("--global-batch", type=click.IntRange(1, MOST_SEQUENCES), help="Another one than the recipe's, by rule.")
@click.option("--dataset", metavar="NAME|PATH", help="Hub name, local JSONL/Parquet/text, or: sample.")
@click.option("--framework", type=click.Choice(["any", *FRAMEWORKS]), default="any", show_default=True)
@strategy_options
@click.option("--out", metavar="DIR", help="Where the files go: runs/RECIPE, or beside PLAN.json, unless given.")
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@launcher_option
@click.option("--submit/--local", default=False, help="Submit with sbatch, or start here (default).")
@click.option("--dry-run", is_flag=True, help="Write the files and print the command, start nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --submit or --dry-run: print JSON.")
def command(what: str, program_arguments: tuple[str, ...], **options: Any) -> None:
    """Write the files of a recipe or of PLAN.json, and start them. What follows -- goes to the program.

    A recipe that would start here is planned for this machine's GPUs, or its processors where it has none.

    \b
    toolkit launch tiny --gpus 2
    toolkit launch sft-zephyr-7b --gpus 8 --cluster dgx-h100 --submit
    toolkit launch plan/plan.json --submit
    """
    if options["as_json"] and not (options["submit"] or options["dry_run"]):
        raise ToolkitError(
            "--json is for --submit and --dry-run", remedy="a local start prints what the program prints"
        )
    plan, folder = _plan(what, options)
    if not (plan.contract.dataset or options["dry_run"]):
        raise ToolkitError(
            f"{plan.name} names no data to train on, its program would end at once",
            remedy="give --dataset NAME|PATH with the recipe's name, or --dry-run to write the files only",
        )
    from toolkit.cli.here import check_arguments
    from toolkit.emit.bundle import bundle

    if program_arguments:
        check_arguments(plan, program_arguments)
    files = bundle(plan, str(folder), options["launcher"])
    if not (options["submit"] or options["dry_run"]):
        from toolkit.cli.here import check_runs_here

        check_runs_here(plan, files)
    _write(files, folder, options["force"])
    script = folder / ("train.sbatch" if options["submit"] else "launch.sh")
    start = ["sbatch" if options["submit"] else "bash", str(script), *program_arguments]
    if not options["as_json"]:
        click.echo(f"files in {folder}; start with: {shlex.join(start)}", err=True)
    said = ""
    if options["submit"] and not options["dry_run"]:
        said = _submit(start)
    if options["as_json"]:
        import json

        click.echo(json.dumps({"out": str(folder), "command": start, "started": bool(said), "output": said}))
    elif said:
        click.echo(said)
    if not (options["submit"] or options["dry_run"]):
        _start(start)


def _plan(what: str, options: dict[str, Any]) -> tuple[Plan, Path]:
    """The plan that is meant, and the absolute folder for its files."""
    if what.endswith(".json"):
        given = [name for name in OF_A_RECIPE if options[name]]
        if given:
            raise ToolkitError(
                f"{what} is a plan already, --{given[0].replace('_', '-')} would need another one",
                remedy="leave it out, or give the recipe's name",
            )
        from toolkit.cli.files import read_plan

        return read_plan(what), Path(options["out"] or Path(what).parent).absolute()
    from toolkit.cli.plan import no_plan, plan
    from toolkit.cli.request import build

    if not options["submit"]:
        from toolkit.cli.here import on_this_machine

        options = on_this_machine(options)
    asked = build(options | {"recipe": what})
    ranked, result = plan(asked, 1)
    if not ranked:
        raise no_plan(asked, result)
    if not options["as_json"]:
        for sentence in asked.contract_notes:
            click.echo(sentence, err=True)
        click.echo(_told(ranked[0]), err=True)
    return ranked[0], Path(options["out"] or Path("runs") / ranked[0].name).absolute()


def _told(plan: Plan) -> str:
    """For what it was planned, and what the plan says of it."""
    from toolkit.strategy import describe

    cluster, memory = plan.cluster, plan.memory.total_bytes / 2**30
    return (
        f"{plan.recipe} on {cluster.nodes} x {cluster.gpus_per_node} {cluster.accelerator.name}:"
        f" {describe(plan.strategy)}; predicted {plan.step.seconds:.3g} s a step,"
        f" {memory:.3g} of {plan.memory_limit_bytes / 2**30:.3g} GiB ({plan.verdict})"
    )


def _write(files: dict[str, str], folder: Path, force: bool) -> None:
    """Write what is missing or, with ``force``, what differs; files that are as they should be stay."""
    from toolkit.cli.files import write_files

    changed = {name: text for name, text in files.items() if not _holds(folder / name, text)}
    write_files(folder, changed, force)


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except (OSError, UnicodeEncodeError):
        return False


def _submit(start: list[str]) -> str:
    try:
        done = subprocess.run(start, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ToolkitError(
            "there is no sbatch on this machine", remedy="leave --submit out, or log in to the cluster"
        ) from error
    if done.returncode:
        raise ToolkitError(
            f"sbatch refused the job: {done.stderr.strip()}", remedy="correct the site in the cluster's TOML"
        )
    return done.stdout.strip()


def _start(start: list[str]) -> None:
    """Become the script, so that signals reach it; this interpreter's environment comes first on PATH."""
    sys.stdout.flush()
    sys.stderr.flush()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.execvpe(start[0], start, os.environ | {"PATH": path})
