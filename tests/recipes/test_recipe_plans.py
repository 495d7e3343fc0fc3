"""Every shipped recipe on its reference cluster: there is a plan, its files are written, and its program takes them."""

import json
import subprocess
import sys

import msgspec
import pytest

from recipes.finetune import checks
from recipes.pretrain import validity
from recipes.pretrain.config import CoreConfig
from tests import recipe_table
from tests.emit.test_deepspeed import deepspeed_reads
from tests.emit.test_megatron import FLAGS, MEGATRON_READS, TAKE_SEVERAL, grouped
from toolkit.cli.plan import plan as search
from toolkit.cli.request import build
from toolkit.emit import deepspeed, megatron
from toolkit.emit.bundle import bundle
from toolkit.plan import Plan
from toolkit.plan import load as read_plan
from toolkit.recipe import planned_steps
from toolkit.registry.recipes import load_recipe
from toolkit.whole_run import whole_run

NAMES = [found.recipe.name for found in recipe_table.shipped()]
WITHOUT_DATA = "the contract names no dataset"


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: recipe_table.reference_plan(load_recipe(name)) for name in NAMES}


def test_the_collection_has_what_it_should() -> None:
    wanted = "sft-smollm2-135m sft-smollm2-360m sft-smollm2-1.7b sft-zephyr-7b sft-tulu-3-8b sft-tulu-3-70b"
    wanted += " lora-llama-3.1-8b qlora-70b continue-llama-3-8b pretrain-pythia-160m pretrain-pythia-1.4b"
    wanted += " pretrain-smollm2-1.7b pretrain-llama-3-8b pretrain-llama-3-70b pretrain-llama-3-405b"
    wanted += " pretrain-gpt3-175b pretrain-qwen3-30b-a3b long-context-8b-128k tiny tiny-pretrain tiny-dpo dpo-zephyr"
    assert set(wanted.split()) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_states_where_its_settings_come_from(name: str) -> None:
    recipe = load_recipe(name)
    words = (recipe.source, recipe.expected, recipe.reference, recipe.summary)
    assert all(words)
    assert any(mark in recipe.source for mark in ("@", "arXiv:", "own")), "a repository at a commit, or a paper"
    assert recipe.status == "planned only" or recipe.measured, "verified, but nothing was measured"
    if not recipe.contract.dataset:
        assert "give --dataset" in recipe.differs


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_on_the_reference_cluster_keeps_the_contract(name: str, plans: dict[str, Plan]) -> None:
    plan, recipe = plans[name], load_recipe(name)
    assert plan.contract == recipe.contract and plan.recipe == f"{name}@{recipe.version}"
    assert plan.program == recipe.program
    s = plan.strategy
    assert s.micro_batch_size * s.gradient_accumulation_steps * s.dp == recipe.contract.global_batch_size
    assert plan.memory.total_bytes <= plan.memory_limit_bytes
    assert (whole_run(plan) is None) == (planned_steps(recipe.contract) == 0)
    if not recipe.contract.dataset:
        assert any("names no data set" in each for each in plan.assumptions)


@pytest.mark.parametrize("name", NAMES)
def test_its_program_takes_the_files(name: str, plans: dict[str, Plan]) -> None:
    plan = plans[name]
    if not plan.contract.dataset:
        plan = msgspec.structs.replace(plan, contract=msgspec.structs.replace(plan.contract, dataset="sample"))
    files = bundle(plan, "/runs/x")
    assert {"plan.json", "launch.sh", "train.sbatch"} <= files.keys()
    assert read_plan(files["plan.json"]) == plan
    if plan.program == "pretrain":
        validity.check(plan, msgspec.json.decode(files["megatron_core.json"], type=CoreConfig), plan.cluster.num_gpus)
    else:
        config = json.loads(files["ds_config.json"]) if plan.strategy.framework == "deepspeed" else None
        checks.check(plan, plan.cluster.num_gpus, config)


@pytest.mark.parametrize("name", [name for name in NAMES if load_recipe(name).program == "pretrain"])
def test_megatron_lms_parser_knows_every_flag(name: str, plans: dict[str, Plan]) -> None:
    flags = grouped(plans[name])
    for flag, values in flags.items():
        kind, *choices = FLAGS[flag]
        assert len(values) == (0 if kind == "switch" else 1) or (flag in TAKE_SEVERAL and values), flag
        assert not choices or values[0] in choices[0], f"{flag} {values}"
    if load_recipe(name).contract.schedule == "wsd":
        assert [flags[f"--lr-{each}"][0] for each in ("decay-style", "wsd-decay-style", "wsd-decay-iters")] == [
            "WSD",
            "linear",
            "524000",
        ]
    if load_recipe(name).contract.rope_theta:
        assert float(flags["--rotary-base"][0]) == load_recipe(name).contract.rope_theta


@pytest.mark.slow
def test_megatron_cores_own_classes_take_every_keyword(plans: dict[str, Plan]) -> None:
    configs = {name: megatron.core_config(plan) for name, plan in plans.items() if plan.program == "pretrain"}
    done = subprocess.run(
        [sys.executable, "-c", MEGATRON_READS], input=json.dumps(configs), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.rpartition("ANSWER")[2])
    assert answers.keys() == configs.keys()
    assert {name: each for name, each in answers.items() if isinstance(each, str)} == {}


@pytest.fixture(scope="module")
def deepspeed_plans() -> dict[str, Plan]:
    found = {}
    for name in NAMES:
        recipe = load_recipe(name)
        if recipe.program == "finetune":
            cluster, gpus = recipe.reference.split()
            asked = build({"recipe": name, "cluster": cluster, "gpus": gpus, "framework": "deepspeed"})
            (found[name],), _ = search(asked, 1)
    return found


@pytest.mark.slow
def test_deepspeeds_own_class_reads_what_the_plan_says(deepspeed_plans: dict[str, Plan]) -> None:
    by_ranks: dict[int, dict[str, Plan]] = {}
    for name, plan in deepspeed_plans.items():
        by_ranks.setdefault(plan.strategy.dp, {})[name] = plan
    for ranks, plans_of_it in by_ranks.items():
        found = deepspeed_reads({name: deepspeed.config(plan) for name, plan in plans_of_it.items()}, ranks)
        for name, plan in plans_of_it.items():
            read, s, contract = found[name], plan.strategy, load_recipe(name).contract
            assert read.get("unknown") == [], (name, read)
            batch = [contract.global_batch_size, s.micro_batch_size, s.gradient_accumulation_steps]
            assert read["batch"] == batch, name
            assert (read["stage"], read["clipping"]) == (s.zero_stage, contract.gradient_clipping), name


def test_the_table_is_what_recipes_and_plans_say() -> None:
    text = recipe_table.README.read_text()
    assert text == recipe_table.rendered(text), "run: python -m tests.recipe_table"
    assert all(f"[`{name}`]" in text for name in NAMES)
