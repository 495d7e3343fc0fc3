"""Record the contracts of the shipped recipes: ``python -m recipes.lock``.

``contracts.lock`` holds, for every version of every recipe, the fingerprint of its contract and the
settings themselves, so that "tiny@1" means the same experiment for ever. A recipe whose settings change
needs a new version: this program adds versions and never rewrites one, and a test compares. The
defaults of the schema are recorded too, because a fingerprint covers only what differs from them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import Problems, ToolkitError
from toolkit.recipe import Contract, Recipe, contract_sha256
from toolkit.registry.recipes import SHIPPED, all_recipes

LOCK = Path(__file__).parent / "contracts.lock"


def entry(recipe: Recipe) -> dict[str, Any]:
    """What is recorded of one version of a recipe."""
    settings, defaults = msgspec.to_builtins(recipe.contract), msgspec.to_builtins(Contract())
    changed = {name: value for name, value in settings.items() if value != defaults[name]}
    return {"sha256": contract_sha256(recipe.contract), "contract": changed}


def updated(lock: dict[str, Any], recipes: list[Recipe]) -> dict[str, Any]:
    """The lock with new versions added; raises ToolkitError where a recorded contract or default has changed."""
    defaults: dict[str, Any] = msgspec.to_builtins(Contract())
    contracts = dict(lock.get("contracts", {}))
    with Problems() as problems:
        for name, value in lock.get("defaults", {}).items():
            if defaults.get(name) != value:
                problems.add(
                    f"the default of {name} was {value}, it is {defaults.get(name, 'gone')}",
                    "every recipe that relies on it would change: write the value into the recipes instead",
                )
        for recipe in recipes:
            key = f"{recipe.name}@{recipe.version}"
            if contracts.setdefault(key, entry(recipe)) != entry(recipe):
                problems.add(
                    f"the contract of {key} has changed since it was recorded",
                    f"give the recipe version {recipe.version + 1}: another contract is another experiment",
                )
    return {"defaults": defaults, "contracts": dict(sorted(contracts.items()))}


def read() -> dict[str, Any]:
    """The recorded contracts."""
    return json.loads(LOCK.read_text()) if LOCK.exists() else {}  # type: ignore[no-any-return]


def main() -> int:
    """Add what is new."""
    shipped = [recipe for recipe, path in all_recipes() if path.is_relative_to(SHIPPED)]
    try:
        lock = updated(read(), shipped)
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    LOCK.write_text(json.dumps(lock, indent=1) + "\n")
    print(f"{LOCK}: {', '.join(lock['contracts'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
