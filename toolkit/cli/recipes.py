"""``toolkit recipes``: list recipes, or show one with its whole contract."""

from __future__ import annotations

import json

import click


@click.command("recipes")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List recipes, or show one.

    \b
    toolkit recipes
    toolkit recipes tiny
    """
    import msgspec

    from toolkit.recipe import contract_sha256
    from toolkit.registry.recipes import all_recipes, find_recipe

    found = [find_recipe(name)] if name else all_recipes()
    if as_json:
        documents = [
            msgspec.to_builtins(recipe) | {"contract_sha256": contract_sha256(recipe.contract), "path": str(path)}
            for recipe, path in found
        ]
        click.echo(json.dumps(documents[0] if name else documents, indent=2, allow_nan=False))
        return
    if not name:
        width = max((len(recipe.name) for recipe, _ in found), default=0)
        for recipe, _ in found:
            click.echo(f"{recipe.name:<{width}}  v{recipe.version}  {recipe.program:<8}  {recipe.status}")
            click.echo(f"{'':<{width}}  {recipe.summary}")
        return
    recipe, path = found[0]
    click.echo(f"{recipe.name}, version {recipe.version}, run by {recipe.program}")
    for label in ("summary", "source", "status", "expected"):
        click.echo(f"  {label:<9} {getattr(recipe, label) or '-'}")
    click.echo(f"  {'file':<9} {path}")
    click.echo(f"  contract  {contract_sha256(recipe.contract)[:16]}")
    for field, value in msgspec.to_builtins(recipe.contract).items():
        click.echo(f"    {field:<20} {value if value != '' else '-'}")
