"""``toolkit profile``: measure a recipe on one device, beside its prediction, and write the calibration."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import time_limit
from toolkit.errors import ToolkitError
from toolkit.strategy import FRAMEWORKS
from toolkit.workload import MOST_SEQUENCES

if TYPE_CHECKING:
    from toolkit.plan import Plan

OF_A_RECIPE = ("cluster", "accelerator", "global_batch", "micro_batch_size", "dataset", "precision")
CALIBRATION, DOCUMENT = "calibration.toml", "profile.json"


@click.command("profile")
@click.argument("what", metavar="RECIPE|PLAN.json")
@click.option("--steps", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Optimizer steps to time.")
@click.option(
    "--warm-up", type=click.IntRange(1, 1000), default=3, show_default=True, help="Steps before, not counted."
)
@click.option("--cluster", metavar="NAME|FILE", help="What this machine is; local-cpu where it has no GPU.")
@click.option("--accelerator", metavar="NAME", help="What this machine's GPU is; else what the driver calls it.")
@click.option("--framework", type=click.Choice(["any", *FRAMEWORKS]), default="any", show_default=True)
@click.option("--precision", type=click.Choice(["bf16", "fp16", "fp32", "fp8"]))
@click.option("--dataset", metavar="NAME|PATH", help="Instead of the recipe's.")
@click.option("--global-batch", type=click.IntRange(1, MOST_SEQUENCES), help="Instead of the recipe's: shorter steps.")
@click.option("--micro-batch", "micro_batch_size", type=click.IntRange(1, MOST_SEQUENCES), help="Sequences per pass.")
@click.option("--calibration", metavar="NAME|FILE", default="assumed", show_default=True, help="What it starts from.")
@click.option("--out", metavar="DIR", help=f"For {CALIBRATION} and {DOCUMENT}: profiles/NAME, unless given.")
@click.option("--force", is_flag=True, help="Let --out replace files that exist.")
@time_limit(900.0, "For the training program, and for the kernels.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(what: str, steps: int, warm_up: int, time_limit: float, as_json: bool, **options: Any) -> None:
    """Run a recipe's own training program on one device, and set what it takes beside the prediction.

    Throughput, step time, memory by component and the share of data loading; then matrix products, memory bandwidth
    and (two GPUs or more) collectives by size. What can be measured becomes a calibration for --calibration FILE; the
    other coefficients stay as they were. On processors it works the same, and says nothing about GPUs.

    \b
    toolkit profile tiny --steps 8 --out profiles/here
    toolkit profile tiny-pretrain --accelerator h100
    """
    import datetime
    import json

    from toolkit.calibrate.writing import text
    from toolkit.cli.files import require_place, write_files
    from toolkit.cli.here import require_gpus
    from toolkit.profile import compare, start
    from toolkit.profile.single import on_one_device
    from toolkit.registry.calibrations import load_calibration
    from toolkit.report.profile import lines

    stated = load_calibration(options["calibration"])
    plan = on_one_device(_plan(what, options), stated)
    if not plan.contract.dataset:
        raise ToolkitError(
            f"{plan.name} names no data to train on", remedy="give --dataset NAME|PATH with the recipe's name"
        )
    require_gpus(plan)
    folder = Path(options["out"] or Path("profiles") / plan.name)
    require_place(folder, (CALIBRATION, DOCUMENT), options["force"])
    with tempfile.TemporaryDirectory() as temporary:
        click.echo(f"the {plan.program} program: {warm_up} steps to warm up, {steps} timed, 2 taken apart", err=True)
        run = start.program(plan, Path(temporary), warm_up, steps, time_limit)
        click.echo(f"kernels on {run['device']}", err=True)
        kernels = start.kernels(run["kind"], compare.kernel_precision(plan), Path(temporary), time_limit)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    fitted, refused = compare.calibrate(plan, stated, run, kernels, date)
    found = compare.document(plan, stated, fitted, refused, run, kernels)
    found["calibration"]["file"] = str(folder / CALIBRATION)
    said = json.dumps(found, indent=2, allow_nan=False)
    write_files(folder, {CALIBRATION: text(fitted), DOCUMENT: said + "\n"}, options["force"])
    click.echo(said if as_json else "\n".join(lines(found)))
    click.echo(f"wrote {folder / CALIBRATION}: use it with --calibration {folder / CALIBRATION}", err=True)


def _plan(what: str, options: dict[str, Any]) -> Plan:
    if what.endswith(".json"):
        given = [name.replace("_", "-").removesuffix("-size") for name in OF_A_RECIPE if options[name]]
        if given:
            raise ToolkitError(
                f"{what} is a plan already, --{given[0]} would need another one",
                remedy="leave it out, or give the recipe's name",
            )
        from toolkit.cli.files import read_plan

        return read_plan(what)
    from toolkit.cli.here import on_this_machine
    from toolkit.cli.plan import no_plan, plan
    from toolkit.cli.request import build

    asked = build(on_this_machine(options) | {"recipe": what, "gpus": "1"})
    ranked, result = plan(asked, 1)
    if not ranked:
        raise no_plan(asked, result)
    return ranked[0]
