"""``toolkit parity``: several worker processes learn what one does, or the first thing that they do not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import time_limit
from toolkit.errors import Problem, Problems, ToolkitError

if TYPE_CHECKING:
    from toolkit.plan import Plan


@click.command("parity")
@click.argument("recipe", metavar="RECIPE")
@click.option(
    "--against", metavar="LAYOUTS", help="tp2,pp2,tp2+sp,tp2+pp2,cp2,ep2,zero1 ...: all that it can, unless given."
)
@click.option(
    "--steps", type=click.IntRange(1, 1000), default=4, show_default=True, help="Optimizer steps of each run."
)
@click.option("--cluster", metavar="NAME|FILE", default="local-cpu", show_default=True, help="Where the workers run.")
@click.option("--model", metavar="NAME|PATH", help="Instead of the recipe's, for example one with experts for ep2.")
@click.option("--dataset", metavar="NAME|PATH", help="Instead of the recipe's.")
@click.option("--sequence-length", type=click.IntRange(min=1), help="Instead of the recipe's.")
@click.option("--global-batch", type=click.IntRange(min=1), help="Instead of the recipe's.")
@click.option("--packing/--no-packing", default=None, help="--no-packing: documents of different lengths, padded.")
@click.option("--keep", metavar="DIR", help="Keep plans, logs and traces there.")
@time_limit(600.0, "For each run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: pairs with errors, tolerances, verdict, cause.")
def command(recipe: str, against: str | None, steps: int, time_limit: float, as_json: bool, **options: Any) -> None:
    """Train RECIPE in fp32 with one process and with several, and compare every step.

    Loss, gradient norm, each gradient and each weight must agree up to the rounding that another order of summation
    makes: a bound that is computed, not chosen (docs/maths.md, N). Where they do not, it says which tensor, at which
    step, and the likely cause. The exit code is 1 where a layout fails.

    \b
    toolkit parity tiny --against zero1,zero2,zero3
    toolkit parity tiny-pretrain --against tp2,pp2,tp2+sp,cp2,tp2+pp2
    """
    from toolkit.verify.parity.run import parity

    reference, plans = plans_of(recipe, against, options)
    found = parity(
        reference,
        plans,
        steps,
        time_limit,
        Path(options["keep"]) if options["keep"] else None,
        lambda line: click.echo(line, err=True),
    )
    if as_json:
        import json

        click.echo(json.dumps(found, allow_nan=False))
    else:
        _show(found)
    if any(each["verdict"] != "pass" for each in found["pairs"]):
        sys.exit(1)


def plans_of(recipe: str, against: str | None, options: dict[str, Any]) -> tuple[Plan, dict[str, Plan]]:
    """The plan of one process and those of the layouts, all of one contract in fp32."""
    from toolkit.registry.recipes import load_recipe
    from toolkit.verify.parity import layouts

    loaded = load_recipe(recipe)
    base = {name: options.get(name) for name in ("cluster", "model", "dataset", "sequence_length", "global_batch")}
    base |= {"recipe": recipe, "precision": "fp32"}
    reference = _planned("one process", base | layouts.parse("dp1", loaded.program), options)
    names = [name.strip() for name in against.split(",") if name.strip()] if against is not None else []
    found: dict[str, Plan] = {}
    with Problems() as problems:
        for name in names or layouts.defaults(loaded.program, reference.model.num_experts > 0):
            try:
                found[name] = _planned(name, base | layouts.parse(name, loaded.program), options)
            except ToolkitError as error:
                problems.absorb(error)
    return reference, found


def _planned(name: str, pinned: dict[str, Any], options: dict[str, Any]) -> Plan:
    import msgspec

    from toolkit.cli.estimate import strategy_of
    from toolkit.cli.options import pins_of
    from toolkit.cli.plans import plan_of
    from toolkit.cli.request import build
    from toolkit.search.constraints import violated
    from toolkit.search.planner import choose
    from toolkit.verify.parity.layouts import batches

    try:
        asked = build(pinned)
        pins = pins_of(pinned | batches(pinned, asked.contract.global_batch_size, asked.request.model.num_experts > 0))
        strategy = strategy_of(asked.request, pins)
        wrong = [problem for rule, problem in violated(asked.request, strategy) if not rule.advice]
        if wrong:
            raise ToolkitError(*wrong)
        made = plan_of(asked, choose(asked.request, asked.calibration, strategy), ())
    except ToolkitError as error:
        raise ToolkitError(*(Problem(f"{name}: {each.message}", each.remedy) for each in error.problems)) from error
    contract = made.contract
    if options.get("packing") is not None:
        contract = msgspec.structs.replace(contract, packing=options["packing"])
    return msgspec.structs.replace(made, contract=contract)


def _show(found: dict[str, Any]) -> None:
    from toolkit.units import format_seconds

    click.echo(
        f"{found['recipe']} in fp32, against one process ({found['reference']}), {format_seconds(found['seconds'])}"
    )
    click.echo(f"{'against':<14}{'steps':>6}{'loss':>18}{'gradient norm':>18}{'gradients':>18}{'weights':>18}  verdict")
    for pair in found["pairs"]:
        cells = "".join(f"{_cell(pair, name):>18}" for name in ("loss", "gradient_norm", "gradients", "weights"))
        click.echo(f"{pair['against']:<14}{pair['steps']:>6}{cells}  {pair['verdict']}")
    click.echo("each: largest difference / what rounding allows there")
    for pair in found["pairs"]:
        if pair["verdict"] != "pass":
            where = pair.get("where", {})
            place = " ".join(str(part) for part in (where.get("quantity"), where.get("parameter")) if part)
            click.echo(f"{pair['against']} fails at step {where.get('step')}, {place}: {pair['cause']}")


def _cell(pair: dict[str, Any], name: str) -> str:
    if name not in pair["max_abs_error"]:
        return "-"
    return f"{pair['max_abs_error'][name]:.1e}/{pair['tolerance'][name]:.1e}"
