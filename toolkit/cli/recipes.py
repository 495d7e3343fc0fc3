"""``toolkit recipes``: list recipes, or show one with its whole contract."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from toolkit.cli.lines import wrapped
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.registry.recipes import Found
    from toolkit.schedule import Point

LABELS = ("summary", "source", "differs", "reference", "status", "expected", "measured")


@click.command("recipes")
@click.argument("words", nargs=-1, metavar="[show] [NAME[@VERSION]]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(words: tuple[str, ...], as_json: bool) -> None:
    """List recipes, or show one: the newest version, or the one after @.

    \b
    toolkit recipes
    toolkit recipes show tiny
    toolkit recipes show tiny@1
    """
    from toolkit.registry.recipes import all_recipes, find_recipe

    name = _name(words)
    found = [find_recipe(name)] if name else all_recipes()
    if as_json:
        documents = [_document(each) for each in found]
        click.echo(json.dumps(documents[0] if name else documents, indent=2, allow_nan=False))
    elif name:
        _show(found[0])
    else:
        _list(found)


def _name(words: tuple[str, ...]) -> str:
    names = words[1:] if words[:1] == ("show",) else words
    if len(names) > 1:
        raise ToolkitError(f"{', '.join(names)} are several recipes", remedy="show one of them")
    if words and not names:
        raise ToolkitError("which recipe?", remedy="toolkit recipes show NAME; toolkit recipes lists the names")
    return names[0] if names else ""


def _document(found: Found) -> dict[str, object]:
    import msgspec

    from toolkit.recipe import contract_sha256

    values: dict[str, object] = msgspec.to_builtins(found.recipe)
    rates = [{"where": each.where, "step": each.step, "learning_rate": each.rate} for each in _rates(found)]
    own = {"contract_sha256": contract_sha256(found.recipe.contract), "path": str(found.path)}
    return values | own | {"learning_rates": rates}


def _rates(found: Found) -> tuple[Point, ...]:
    """The learning rate of steps as the programs count and log them; nothing where the contract counts in epochs."""
    from toolkit.recipe import planned_steps
    from toolkit.schedule import points

    contract = found.recipe.contract
    steps = planned_steps(contract)
    return points(contract, steps) if steps else ()


def _rate(point: Point) -> str:
    place = "after it" if point.where == "end" else f"at step {point.step:,} ({point.where})"
    return f"{point.rate:.4g} {place}"


def _list(found: list[Found]) -> None:
    width = max((len(recipe.name) for recipe, _ in found), default=0)
    for recipe, _ in found:
        click.echo(wrapped(f"{recipe.name:<{width}}  v{recipe.version}  {recipe.program:<8}  ", recipe.status))
        click.echo(wrapped(f"{'':<{width}}  ", recipe.summary))


def _show(found: Found) -> None:
    import msgspec

    from toolkit.recipe import contract_sha256

    recipe, path = found
    click.echo(f"{recipe.name}, version {recipe.version}, run by {recipe.program}")
    for label in LABELS:
        click.echo(wrapped(f"  {label:<9} ", getattr(recipe, label) or "-"))
    click.echo(f"  {'file':<9} {path}")
    rates = ", ".join(map(_rate, _rates(found)))
    click.echo(wrapped("  rates     ", rates or "by epochs: how many steps there are, only the data can tell"))
    click.echo(f"  contract  {contract_sha256(recipe.contract)[:16]}")
    for field, value in msgspec.to_builtins(recipe.contract).items():
        click.echo(f"    {field:<20} {value if value != '' else '-'}")
