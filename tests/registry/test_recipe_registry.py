"""Recipes load strictly, by name or path, and a contract never changes under its version."""

import math
import re
from pathlib import Path

import msgspec
import pytest

from recipes import lock
from toolkit.cli.request import build
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract, contract_problems, contract_sha256
from toolkit.registry.recipes import SHIPPED, all_recipes, find_recipe, load_recipe

TINY = (SHIPPED / "finetune" / "tiny.toml").read_text()


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, empty."""
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path / "own"))
    (tmp_path / "own" / "recipes").mkdir(parents=True)
    return tmp_path / "own" / "recipes"


def written(tmp_path: Path, text: str, name: str = "mine") -> str:
    path = tmp_path / f"{name}.toml"
    path.write_text(text.replace('name = "tiny"', f'name = "{name}"'))
    return str(path)


def message(name: str) -> str:
    with pytest.raises(ToolkitError) as caught:
        load_recipe(name)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*/*.toml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_loads(path: Path) -> None:
    recipe = load_recipe(path.stem)
    assert recipe.name == path.stem
    assert recipe.program == path.parent.name  # the folder of the program that runs it
    assert recipe.source and recipe.summary and recipe.status
    assert recipe in [found.recipe for found in all_recipes()]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tiny@", "no version ''"),
        ("tiny@99", "no version '99'"),
        ("tiny@*", "no version"),
        ("~nobody-at-all/x.toml", "cannot read"),
        ("/tmp/" + "a" * 300 + ".toml", "cannot read"),
        ("a\0.toml", "cannot read"),
    ],
)
def test_names_that_mean_no_recipe(name: str, said: str) -> None:
    assert said in message(name)


def test_more_steps_than_a_schedule_can_count_are_refused(tmp_path: Path) -> None:
    text = TINY.replace("total_steps = 60", "total_tokens = 1e17").replace(
        "sequence_length = 128", "sequence_length = 2"
    )
    assert "total_tokens 1e+17 are" in message(written(tmp_path, text))
    assert "contract.epochs is 1e+300" in message(written(tmp_path, TINY + "epochs = 1e300\n"))


def test_a_contract_never_changes_under_its_version() -> None:
    shipped = [found.recipe for found in all_recipes()]
    recorded = lock.read()
    assert lock.updated(recorded, shipped) == recorded, "a recipe or version is new: run python -m recipes.lock"


def test_the_lock_notices_a_change_and_a_new_default() -> None:
    recorded, recipe = lock.read(), load_recipe("tiny")
    other = msgspec.structs.replace(recipe, contract=msgspec.structs.replace(recipe.contract, seed=43))
    with pytest.raises(ToolkitError, match="give the recipe version 2"):
        lock.updated(recorded, [other])
    assert "tiny@2" in lock.updated(recorded, [msgspec.structs.replace(other, version=2)])["contracts"]
    changed = recorded | {"defaults": recorded["defaults"] | {"adam_beta2": 0.999}}
    with pytest.raises(ToolkitError, match="the default of adam_beta2 was 0.999, it is 0.95"):
        lock.updated(changed, [])


def test_the_fingerprint_covers_every_setting_and_no_default() -> None:
    base = Contract()
    seen = {contract_sha256(base)}
    for field in msgspec.structs.fields(Contract):
        value = getattr(base, field.name)
        other = not value if isinstance(value, bool) else value + ("x" if isinstance(value, str) else 1)
        seen.add(contract_sha256(msgspec.structs.replace(base, **{field.name: other})))
    assert len(seen) == 1 + len(msgspec.structs.fields(Contract))
    assert contract_sha256(Contract(seed=42)) == contract_sha256(base)


def test_unknown_names_get_a_suggestion() -> None:
    assert "did you mean tiny" in message("tinny")


def test_case_and_blanks_do_not_matter() -> None:
    assert load_recipe(" TINY ") == load_recipe("tiny")


def test_own_recipes_hide_shipped_ones(own_folder: Path) -> None:
    written(own_folder, TINY.replace("seed = 42", "seed = 7"), "tiny")
    found = find_recipe("tiny")
    assert (found.recipe.contract.seed, found.path) == (7, own_folder / "tiny.toml")


def test_an_old_version_stays_runnable(own_folder: Path) -> None:
    old = written(own_folder, TINY, "mine")
    (own_folder / "earlier").mkdir()
    Path(old).rename(own_folder / "earlier" / "mine@1.toml")
    written(own_folder, TINY.replace("version = 1", "version = 2").replace("seed = 42", "seed = 7"), "mine")
    assert [load_recipe(name).contract.seed for name in ("mine", "mine@2", "mine@1", "MINE@1")] == [7, 7, 42, 42]
    assert [found.recipe.version for found in all_recipes() if found.recipe.name == "mine"] == [2]
    assert "no version '3'" in message("mine@3") and "there is 1, 2" in message("mine@3")
    assert "no version 'x'" in message("mine@x")
    asked = build({"recipe": "mine@1", "cluster": "local-cpu", "gpus": "2"})
    assert (asked.contract.seed, asked.recipe and asked.recipe.version) == (42, 1)


def test_every_recorded_version_is_found_and_is_what_was_recorded() -> None:
    contracts = lock.read()["contracts"]
    assert len(contracts) >= 20
    for name, recorded in contracts.items():
        recipe = load_recipe(name)
        assert f"{recipe.name}@{recipe.version}" == name
        assert contract_sha256(recipe.contract) == recorded["sha256"], name


def test_files_beside_a_recipe_are_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    path = written(tmp_path, TINY.replace('dataset = "sample"', 'dataset = "rows.jsonl"'))
    assert load_recipe(path).contract.dataset == str(tmp_path / "rows.jsonl")
    path = written(tmp_path, TINY.replace('dataset = "sample"', 'dataset = "org/name"'), "other")
    assert load_recipe(path).contract.dataset == "org/name"


@pytest.mark.parametrize(("name", "found"), [("folder", True), ("tiny", False), ("gone", False)])
def test_a_bare_name_beside_a_recipe_is_its_model_unless_it_is_registered(
    tmp_path: Path, name: str, found: bool
) -> None:
    for each in ("folder", "tiny"):
        (tmp_path / each).mkdir()
        (tmp_path / each / "config.json").touch()
    (tmp_path / "corpus.idx").touch()
    text = re.sub("(?m)^model = .*", f'model = "{name}"', re.sub("(?m)^dataset = .*", 'dataset = "./corpus"', TINY))
    contract = load_recipe(written(tmp_path, text)).contract
    assert contract.model == (str(tmp_path / name) if found else name)
    assert contract.dataset == str(tmp_path / "corpus")  # a prefix of an indexed data set


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    text = TINY.replace("seed = 42", 'sede = 42\nlearning_rat = 1\nepochs = "one"')
    said = message(written(tmp_path, text))
    assert "contract.sede" in said and "did you mean seed" in said
    assert "contract.learning_rat" in said and "learning_rate" in said
    assert "contract.epochs" in said


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('program = "finetune"', 'program = "serve"', "program is 'serve'"),
        ("version = 1", "version = 0", "versions are 1, 2, 3"),
        ('status = "verified on 2', 'status = "tested on 2', "say 'planned only' or 'verified on"),
        ('precision = "bf16"', 'precision = "bf61"', "did you mean bf16"),
        ('schedule = "cosine"', 'schedule = "cosin"', "did you mean cosine"),
        ("global_batch_size = 16", "global_batch_size = 0", "it must be more than 0"),
        ("sequence_length = 128", "sequence_length = -1", "it must be more than 0"),
        ("warmup_steps = 5", "warmup_steps = -5", "it must not be negative"),
        ("adam_beta2 = 0.95", "adam_beta2 = 1.0", "it must be in [0, 1)"),
        ("learning_rate = 3.0e-3", "learning_rate = nan", "learning_rate is nan"),
        ("min_learning_rate = 3.0e-4", "min_learning_rate = 1.0", "exceeds learning_rate"),
        ('model = "tiny"', 'model = ""', "contract.model is empty"),
        ('name = "tiny"', 'name = "huge"', "calls itself 'huge'"),
        ("seed = 42", "seed = 42\nwarmup_fraction = 0.1", "warmup_steps is 5 and warmup_fraction 0.1"),
        ("seed = 42", "seed = 42\nlora_dropout = 1.5", "it is a share, from 0 to 1"),
        ("seed = 42", 'seed = 42\nchat_template = "chatm"', "did you mean chatml"),
        ('schedule = "cosine"', 'schedule = "wsd"', "schedule wsd needs a decay_fraction"),
        ("seed = 42", "seed = 42\ndecay_fraction = 0.1", "schedule wsd needs a decay_fraction"),
        ('reference = "local-cpu 2"', 'reference = "local-cpu"', "write a cluster and GPUs"),
        ("[contract]", "[contract", "cannot read the recipe"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, before: str, after: str, expected: str) -> None:
    assert before in TINY
    path = tmp_path / "mine.toml"
    named = TINY if before.startswith("name") else TINY.replace('name = "tiny"', 'name = "mine"')
    path.write_text(named.replace(before, after, 1))
    assert expected in message(str(path))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0])
def test_no_setting_is_a_number_that_is_none(number: float) -> None:
    plain = Contract()
    for name in (each for each in plain.__struct_fields__ if isinstance(getattr(plain, each), float)):
        said = [str(each) for each in contract_problems(msgspec.structs.replace(plain, **{name: number}))]
        assert any(each.startswith(f"{name} is {number}") or f"{name} {number}" in each for each in said), (name, said)


def test_a_missing_file() -> None:
    assert "cannot read the recipe" in message("no/such/recipe.toml")
