"""The table of recipes/README.md, made from the recipes and their plans: ``python -m tests.recipe_table`` writes it.

A prediction is that of the first plan on the recipe's reference cluster, rounded to two digits. What was measured is
what the recipe says was measured.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.cli.plan import plan
from toolkit.cli.request import build
from toolkit.plan import Plan
from toolkit.recipe import Recipe
from toolkit.registry.recipes import SHIPPED, Found, all_recipes
from toolkit.strategy import describe
from toolkit.whole_run import whole_run

README = Path(__file__).resolve().parent.parent / "recipes" / "README.md"
BEGIN, END = "<!-- made by python -m tests.recipe_table -->\n", "<!-- end -->\n"
HEAD = (
    "| recipe | model, method | source of its settings | reference | predicted there | expected | measured | status |\n"
    "|---|---|---|---|---|---|---|---|\n"
)
METHODS = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}


def shipped() -> list[Found]:
    """The recipes of this repository, not a user's own."""
    return [found for found in all_recipes() if found.path.is_relative_to(SHIPPED)]


def reference_plan(recipe: Recipe) -> Plan:
    """The first plan on the recipe's reference cluster."""
    cluster, gpus = recipe.reference.split()
    ranked, _ = plan(build({"recipe": recipe.name, "cluster": cluster, "gpus": gpus}), 1)
    assert ranked, f"no plan for {recipe.name} on {recipe.reference}"
    return ranked[0]


def rendered(text: str) -> str:
    """The README with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{README} has no table between {BEGIN.strip()} and {END.strip()}"
    rows = "".join(_row(found) for found in shipped())
    return f"{before}{BEGIN}{HEAD}{rows}{END}{after}"


def _row(found: Found) -> str:
    recipe, contract = found.recipe, found.recipe.contract
    weights = "" if "/" in contract.model and contract.init == "model" else ", from random weights"
    cells = (
        f"[`{recipe.name}`]({found.path.relative_to(SHIPPED)})",
        f"{contract.model.split('/')[-1]}, {METHODS[contract.method]}{weights}",
        recipe.source.split(": ")[0].split(";")[0],
        recipe.reference,
        _predicted(recipe),
        recipe.expected,
        recipe.measured or "-",
        recipe.status,
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def _predicted(recipe: Recipe) -> str:
    best = reference_plan(recipe)
    said = f"{describe(best.strategy)}: {_two(best.step.seconds)} s a step, {_two(best.memory.total_bytes / 2**30)} GiB"
    run = whole_run(best)
    if run is None or best.cluster.accelerator.is_cpu:
        return said
    days = run.seconds / 86400.0
    return f"{said}, {_two(days)} days" if days >= 1.0 else f"{said}, {_two(24.0 * days)} hours"


def _two(number: float) -> str:
    return f"{float(f'{number:.2g}'):,.10g}"


def write() -> bool:
    """Whether the file has changed."""
    before = README.read_text()
    after = rendered(before)
    if after != before:
        README.write_text(after)
    return after != before


if __name__ == "__main__":
    print(f"{README}: {'changed' if write() else 'nothing has changed'}")
