"""``toolkit parity``: several worker processes learn what one does, or the first thing that they do not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.options import time_limit
from toolkit.errors import Problem, Problems, ToolkitError
from toolkit.estimates import VERDICTS
from toolkit.workload import WORDS

if TYPE_CHECKING:
    from toolkit.plan import Plan


@click.command("parity")
@click.argument("recipe", metavar="RECIPE")
@click.option(
    "--against",
    metavar="LAYOUTS",
    help="tp2,pp2,tp2+sp,tp2+pp2,cp2,ep2,zero1,fsdp2,lora ...: all that it can, unless given.",
)
@click.option(
    "--steps", type=click.IntRange(1, 1000), default=4, show_default=True, help="Optimizer steps of each run."
)
@click.option("--cluster", metavar="NAME|FILE", default="local-cpu", show_default=True, help="Where the workers run.")
@click.option("--model", metavar="NAME|PATH", help="Instead of the recipe's, for example one with experts for ep2.")
@click.option("--dataset", metavar="NAME|PATH", help="Instead of the recipe's.")
@click.option("--method", type=click.Choice(["full", "lora"]), help="Instead of the recipe's, for all layouts.")
@click.option("--optimizer", type=click.Choice(WORDS["optimizer"]), help="Instead of the recipe's.")
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
    step, and the likely cause. Dropout is off while runs are compared; that its seeds are right is looked at apart.
    The exit code is 1 where a layout fails.

    \b
    toolkit parity tiny --against zero1,zero2,zero3,fsdp2
    toolkit parity tiny-pretrain --against tp2,pp2,tp2+sp,cp2,ep2,tp2+pp2
    """
    from toolkit.cli.here import require_gpus
    from toolkit.verify.parity.run import several

    pairs = experiments(recipe, against, options)
    for reference, _ in pairs:
        require_gpus(reference)
    found = several(
        pairs,
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


def experiments(recipe: str, against: str | None, options: dict[str, Any]) -> list[tuple[Plan, dict[str, Plan]]]:
    """The plan of one process, and those of the layouts, all of one contract in fp32; one such pair a contract.

    Layouts with adapters are another contract than those that train every weight; so are layouts that split experts
    where the recipe's model is dense and a model that has some stands in for it.
    """
    from toolkit.registry.recipes import load_recipe
    from toolkit.verify.parity import layouts

    loaded = load_recipe(recipe)
    kept = ("cluster", "model", "dataset", "sequence_length", "global_batch", "method", "optimizer")
    base = {name: options.get(name) for name in kept} | {"recipe": recipe, "precision": "fp32"}
    whole = base | layouts.parse("dp1", loaded.program)
    reference = _planned("one process", whole, options)
    stand_in = layouts.WITH_EXPERTS.get(loaded.contract.model if not options.get("model") else "")
    experts = reference.model.num_experts > 0
    names = [name.strip() for name in against.split(",") if name.strip()] if against is not None else []
    if against is not None and not names:
        raise ToolkitError(f"--against {against!r} names no layout", remedy=f"use {layouts.KNOWN}")
    found: dict[tuple[str, str], tuple[Plan, dict[str, Plan]]] = {}
    with Problems() as problems:
        for name in names or layouts.defaults(loaded.program, experts or stand_in is not None):
            try:
                pinned = layouts.parse(name, loaded.program)
                changes = {"method": pinned["method"]} if "method" in pinned else {}
                if pinned["ep"] > 1 and not experts and stand_in is not None:
                    changes["model"] = stand_in
                key = changes.get("method", ""), changes.get("model", "")
                if key not in found:
                    found[key] = (_planned("one process", whole | changes, options) if changes else reference), {}
                found[key][1][name] = _planned(name, base | pinned | changes, options)
            except ToolkitError as error:
                problems.absorb(error)
    return list(found.values())


def plans_of(recipe: str, against: str, options: dict[str, Any]) -> tuple[Plan, dict[str, Plan]]:
    """The only experiment of these layouts."""
    (only,) = experiments(recipe, against, options)
    return only


def _planned(name: str, pinned: dict[str, Any], options: dict[str, Any]) -> Plan:
    import msgspec

    from toolkit.cli.estimate import strategy_of
    from toolkit.cli.options import pins_of
    from toolkit.cli.plans import plan_of
    from toolkit.cli.request import build
    from toolkit.search.constraints import violated
    from toolkit.search.planner import choose
    from toolkit.units import format_bytes
    from toolkit.verify.parity.layouts import batches

    try:
        asked = build(pinned)
        one_cut = asked.request.model.num_experts > 0 and asked.contract.expert_balance == "micro_batch"
        pins = pins_of(pinned | batches(pinned, asked.contract.global_batch_size, one_cut))
        strategy = strategy_of(asked.request, pins)
        wrong = [problem for rule, problem in violated(asked.request, strategy) if not rule.advice]
        if wrong:
            raise ToolkitError(*wrong)
        made = plan_of(asked, choose(asked.request, asked.calibration, strategy), ())
    except ToolkitError as error:
        raise ToolkitError(*(Problem(f"{name}: {each.message}", each.remedy) for each in error.problems)) from error
    if made.verdict == VERDICTS[-1]:
        raise ToolkitError(
            f"{name}: {made.name} needs {format_bytes(made.memory.total_bytes)} of each worker, which has"
            f" {format_bytes(made.memory_limit_bytes)}",
            remedy="compare a smaller recipe: what is found out is about the program, not about its size",
        )
    contract = made.contract
    if options.get("packing") is not None:
        contract = msgspec.structs.replace(contract, packing=options["packing"])
    return msgspec.structs.replace(made, contract=contract)


def _show(found: dict[str, Any]) -> None:
    from toolkit.units import format_seconds

    click.echo(f"{found['recipe']}: {found['steps']} steps against one process, {format_seconds(found['seconds'])}")
    names = ("loss", "gradient_norm", "gradients", "weights")
    lines = [("against", *(name.replace("_", " ") for name in names), "verdict")]
    for pair in found["pairs"]:
        for label, each in _rows(pair):
            lines.append((label, *(_cell(each, name) for name in names), each["verdict"]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *cells, last in lines:
        middle = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:-1], strict=True))
        click.echo(f"{first:<{widths[0]}}{middle}  {last}")
    click.echo("each: largest difference / what rounding allows there")
    for pair in found["pairs"]:
        for label, each in _rows(pair):
            if each["verdict"] != "pass":
                _tell(label, each)
            for note in each.get("notes", ()):
                _wrapped(f"{label}: {note}")


def _rows(pair: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """A pair, and the same with SyncBatchNorm where it was run again so."""
    again = pair.get("again")
    return [(pair["against"], pair), *([(" +SyncBatchNorm", again)] if again else [])]


def _tell(label: str, pair: dict[str, Any]) -> None:
    where = pair.get("where", {})
    place = [str(where[part]).replace("_", " ") for part in ("quantity",) if where.get(part)]
    place += [where["parameter"]] if where.get("parameter") else []
    step = "at the start" if not where.get("step") else f"at step {where['step']}"
    _wrapped(f"{label.strip()} fails {step} ({', '.join(place)}): {pair['cause']}")


def _wrapped(text: str) -> None:
    import textwrap

    click.echo(textwrap.fill(text, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _cell(pair: dict[str, Any], name: str) -> str:
    if name not in pair["max_abs_error"]:
        return "-"
    error, allowed = (_short(pair[key][name]) for key in ("max_abs_error", "tolerance"))
    return f"{error}/{allowed}"


def _short(value: float) -> str:
    """``1.2e-9``: two digits, no zeros in the exponent; at most six characters unless it is enormous."""
    if value >= 1.0e300:
        return "inf"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}" if value else "0"
