"""Recipes by name or path: ``recipes/*/*.toml`` beside this package, the user's folder first, or a TOML file.

``NAME`` is the newest version, ``NAME@1`` that version for ever: one that is no longer the newest lies in the
folder ``earlier`` beside the newest one's file, as ``NAME@1.toml``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from toolkit.errors import Problems, ToolkitError, reason
from toolkit.programs import unfollowed
from toolkit.recipe import Contract, Recipe, contract_problems
from toolkit.registry import files, strict

EARLIER = "earlier"  # the folder of old versions
SHIPPED = Path(__file__).parent.parent.parent / "recipes"

STATUS = re.compile(r"planned only|verified on .+", re.DOTALL)


class Found(NamedTuple):
    """A recipe and the file that it comes from."""

    recipe: Recipe
    path: Path


def load_recipe(name: str) -> Recipe:
    """The recipe of that name, or of the file that ``name`` is a path to; raises ToolkitError."""
    return find_recipe(name).recipe


def find_recipe(name: str) -> Found:
    """Like :func:`load_recipe`, with the file."""
    if name.endswith(".toml") or "/" in name:
        path = files.expanded(name)
        return Found(_with_absolute_paths(_read(path), path.parent), path)
    paths = _paths()
    name, at, version = name.partition("@")
    key = files.normal(name)
    if key not in paths:
        if files.is_there(Path(name) / "plan.json"):
            raise ToolkitError(f"unknown recipe {name!r}", remedy=_instead_of(Path(name)))
        raise ToolkitError(
            f"unknown recipe {name!r}",
            remedy=f"{strict.did_you_mean(key, paths)} (your own go into {files.user_folder() / 'recipes'}/NAME.toml,"
            " or give the path of a TOML file)",
        )
    found = Found(_read(paths[key]), paths[key])
    if not at or version.strip() == str(found.recipe.version):
        return found
    return _earlier(found, version.strip())


def _earlier(newest: Found, version: str) -> Found:
    recipe, folder = newest.recipe, newest.path.parent / EARLIER
    path = folder / f"{recipe.name}@{version}.toml"
    if path.name not in [each.name for each in folder.glob("*.toml")]:
        others = sorted(each.stem.rpartition("@")[2] for each in folder.glob(f"{recipe.name}@*.toml"))
        raise ToolkitError(
            f"recipe {recipe.name} has no version {version!r}",
            remedy=f"there is {', '.join([*others, str(recipe.version)])}; an earlier one would lie in {folder}",
        )
    return Found(_read(path), path)


def all_recipes() -> list[Found]:
    """Every shipped and every own recipe, by name; raises ToolkitError with the problems of all broken files."""
    found = []
    with Problems() as problems:
        for _, path in sorted(_paths().items()):
            try:
                found.append(Found(_read(path), path))
            except ToolkitError as error:
                problems.absorb(error)
    return found


def chat_templates() -> list[str]:
    """Names that ``chat_template`` of a contract can have."""
    return sorted(path.stem for path in (SHIPPED / "chat_templates").glob("*.jinja"))


def _paths() -> dict[str, Path]:
    """File by the name of the recipe, which is the name of the file; later ones hide earlier ones."""
    shipped = sorted(SHIPPED.glob("*/*.toml"))
    own = sorted((files.user_folder() / "recipes").glob("*.toml"))
    return {files.normal(path.stem): path for path in (*shipped, *own)}


def _read(path: Path) -> Recipe:
    import tomllib

    try:
        values = tomllib.loads(files.contents(path).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ToolkitError(f"cannot read the recipe {path}: {reason(error)}", remedy=_instead_of(path)) from error
    recipe = strict.decode(values, Recipe, str(path))
    _check(recipe, path)
    return recipe


def _instead_of(path: Path) -> str:
    """What the user may have meant by a path that is no recipe."""
    plan = path if path.suffix == ".json" else path / "plan.json"
    if not files.is_there(plan):
        return "give a TOML file, or one of the names of toolkit recipes"
    return f"{plan} is a plan, not a recipe: commands that take PLAN.json take it"


def _check(recipe: Recipe, path: Path) -> None:
    contract = recipe.contract
    with Problems() as problems:
        of_file = path.stem.removesuffix(f"@{recipe.version}") if path.parent.name == EARLIER else path.stem
        if recipe.name != of_file:
            problems.add(f"{path}: the recipe calls itself {recipe.name!r}", f"name it {of_file!r}, as its file")
        if recipe.reference and len(recipe.reference.split()) != 2:
            problems.add(f"{path}: reference is {recipe.reference!r}", "write a cluster and GPUs: 'dgx-h100 8x8'")
        if recipe.version < 1:
            problems.add(f"{path}: version is {recipe.version}", "versions are 1, 2, 3 ...")
        if recipe.program not in ("finetune", "pretrain"):
            problems.add(f"{path}: program is {recipe.program!r}", "use finetune or pretrain")
        if not STATUS.fullmatch(recipe.status):
            problems.add(f"{path}: status is {recipe.status!r}", "say 'planned only' or 'verified on <hardware>'")
        for problem in (*contract_problems(contract), *unfollowed(recipe.program, contract)):
            problems.add(f"{path}: contract.{problem.message}", problem.remedy)
        if contract.chat_template and contract.chat_template not in (known := chat_templates()):
            problems.add(
                f"{path}: contract.chat_template is {contract.chat_template!r}",
                strict.did_you_mean(contract.chat_template, known),
            )
        if not contract.model:
            problems.add(f"{path}: contract.model is empty", "give a registry name, a hub name or a path")


def _with_absolute_paths(recipe: Recipe, folder: Path) -> Recipe:
    """Files named relative to the recipe's own file are found from anywhere."""
    from toolkit.registry.models import find as find_model  # brings the decoders; only a user's own file needs it

    changes: dict[str, Any] = {}
    for name in ("model", "dataset", "tokenizer"):
        value = getattr(recipe.contract, name)
        is_path = "/" in value or "." in value or (name == "model" and find_model(value) is None)
        if value and is_path and not Path(value).is_absolute() and files.is_named(folder / value):
            changes[name] = str((folder / value).resolve())
    contract: Contract = msgspec.structs.replace(recipe.contract, **changes)
    return msgspec.structs.replace(recipe, contract=contract)
