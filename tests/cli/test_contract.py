"""The usual batch: made for the number of GPUs, or for all numbers of a sweep together; and what changes a recipe."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.batch_scaling import rescaled
from toolkit.cli.contract import _default_batch
from toolkit.cli.plan import plan
from toolkit.cli.request import build
from toolkit.errors import ToolkitError
from toolkit.recipe import contract_sha256, planned_steps
from toolkit.registry.recipes import load_recipe


def batch(*counts: int, length: int = 4096, method: str = "full") -> int:
    said: list[str] = []
    found = _default_batch(method, length, counts, said)
    assert f"global batch {found} sequences" in said[0]
    return found


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((64,), 1024),
        ((8, 64, 512), 1024),
        ((48,), 1056),
        ((8, 16, 48), 1056),
        ((8, 1_000_000), 4096),
        ((3, 5, 7), 1050),
    ],
)
def test_about_four_million_tokens_divisible_by_every_count(counts: tuple[int, ...], expected: int) -> None:
    assert batch(*counts) == expected


@given(st.integers(1, 100_000))
def test_one_count_divides_its_batch_or_only_powers_of_two_are_missing(gpus: int) -> None:
    found = batch(gpus)
    assert found % gpus == 0 or found % (gpus // (gpus & -gpus)) == 0


@given(st.lists(st.integers(1, 200_000), min_size=2, max_size=8, unique=True), st.sampled_from(["full", "lora"]))
def test_a_sweep_never_more_than_doubles_the_usual_batch(counts: list[int], method: str) -> None:
    usual = 128 if method == "lora" else 4096 if max(counts) > 1024 else 1024
    found = batch(*counts, method=method)
    assert usual <= found < 2 * usual
    assert found % min(counts) == 0 or min(counts) > usual
    if math.lcm(*counts) <= usual:
        assert all(found % count == 0 for count in counts)


GPUS = st.sampled_from(["1x1", "1x2", "1x4", "1x8", "2x8", "4x8", "16x8"])


@given(
    recipe=st.sampled_from(["tiny", "sft-zephyr-7b", "sft-tulu-3-8b", "pretrain-llama-3-8b", "pretrain-smollm2-1.7b"]),
    gpus=GPUS,
    cluster=st.sampled_from(["dgx-h100", "dgx-a100-80gb", "aws-p4d"]),
    pins=st.fixed_dictionaries({}, optional={"zero_stage": st.integers(0, 3), "tp": st.sampled_from([1, 2, 4])}),
)
def test_another_cluster_or_strategy_never_changes_what_is_learnt(
    recipe: str, gpus: str, cluster: str, pins: dict[str, int]
) -> None:
    asked = build({"recipe": recipe, "gpus": gpus, "cluster": cluster} | pins)
    contract = load_recipe(recipe).contract
    assert asked.contract == contract and contract_sha256(asked.contract) == contract_sha256(contract)
    assert asked.name == recipe
    work = asked.request.workload
    assert (work.global_batch_size, work.sequence_length) == (contract.global_batch_size, contract.sequence_length)


@pytest.mark.parametrize("gpus", ["1x1", "1x2", "1x8", "2x8"])
def test_every_plan_takes_the_same_steps_over_the_same_sequences(gpus: str) -> None:
    asked = build({"recipe": "tiny", "gpus": gpus, "cluster": "dgx-h100"})
    plans, _ = plan(asked, 20)
    assert len(plans) > 2
    for each in plans:
        s = each.strategy
        assert each.contract == load_recipe("tiny").contract
        assert s.micro_batch_size * s.gradient_accumulation_steps * s.dp == 16


def test_another_global_batch_is_another_experiment_and_says_so() -> None:
    asked = build({"recipe": "tiny", "gpus": "2", "cluster": "local-cpu", "global_batch": 64})
    old = load_recipe("tiny").contract
    assert asked.contract == rescaled(old, 64).contract
    assert asked.name == "tiny-batch64"
    said = "\n".join(asked.contract_notes)
    assert "0.003 -> 0.006" in said and contract_sha256(asked.contract)[:16] in said
    (best, *_), _ = plan(asked, 1)
    assert best.recipe.startswith("tiny@1 with another global_batch_size, learning_rate")
    assert best.workload.global_batch_size == 64


def test_the_recipes_own_batch_and_a_rate_of_ones_own() -> None:
    same = build({"recipe": "tiny", "gpus": "2", "cluster": "local-cpu", "global_batch": 16})
    assert same.contract == load_recipe("tiny").contract and same.name == "tiny" and not same.contract_notes
    own = build({"recipe": "tiny", "gpus": "2", "cluster": "local-cpu", "global_batch": 32, "learning_rate": 1e-3})
    assert own.contract.learning_rate == 1e-3
    assert own.contract.total_steps == 30


def test_the_rank_of_adapters_is_asked_for_or_told_and_changes_what_is_trained() -> None:
    asked = {"params": "7B", "gpus": "1", "accelerator": "rtx-4090", "method": "lora", "sequence_length": 2048}
    usual, wide = build(asked), build(asked | {"lora_rank": 64})
    assert any("LoRA of rank 16 (no --lora-rank given)" in said for said in usual.assumptions)
    assert (wide.request.workload.lora_rank, wide.contract.lora_rank, wide.contract.lora_alpha) == (64, 64, 128)
    pins = {"zero_stage": 0, "framework": "ddp"}
    needs = [plan(build(each | pins), 1)[0][0].memory.optimizer_bytes for each in (asked, asked | {"lora_rank": 64})]
    assert needs[1] == pytest.approx(4 * needs[0])
    with pytest.raises(ToolkitError, match="trains no adapters"):
        build(asked | {"method": "full", "lora_rank": 64})


def test_tokens_replace_the_steps_of_a_recipe() -> None:
    assert load_recipe("tiny").contract.total_steps == 60
    asked = build({"recipe": "tiny", "gpus": "2", "cluster": "local-cpu", "tokens": "245760"})
    assert planned_steps(asked.contract) == 120 == 245760 / (16 * 128)
    assert "--tokens 245760 replaces the recipe's 60 steps" in asked.contract_notes
