"""Another layout never changes what a step reads: the sequences of all ranks together, by accelerate's own sampler."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import recipe_table
from toolkit.cli.plan import plan
from toolkit.cli.request import build
from toolkit.registry.recipes import load_recipe
from toolkit.strategy import Strategy

FINETUNE = [found.recipe.name for found in recipe_table.shipped() if found.recipe.program == "finetune"]
STEPS = 3


def read_by(ranks: int, micro_batch: int, accumulation: int) -> list[list[int]]:
    """Numbers of the sequences that all ranks together read in each of the first optimizer steps, sorted."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    batch = ranks * micro_batch * accumulation
    batches = BatchSampler(SequentialSampler(range(STEPS * batch)), micro_batch, drop_last=False)
    of_rank = [list(BatchSamplerShard(batches, num_processes=ranks, process_index=rank)) for rank in range(ranks)]
    return [
        sorted(
            index
            for mine in of_rank
            for one in mine[step * accumulation : (step + 1) * accumulation]
            for index in one
        )
        for step in range(STEPS)
    ]  # fmt: skip


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(1, 16), st.integers(1, 5), st.integers(1, 6))
def test_step_k_reads_the_same_sequences_on_any_number_of_ranks(ranks: int, micro: int, accumulation: int) -> None:
    batch = ranks * micro * accumulation
    assert read_by(ranks, micro, accumulation) == [[*range(k * batch, (k + 1) * batch)] for k in range(STEPS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FINETUNE)
def test_every_plan_of_a_recipe_reads_the_same_sequences(name: str) -> None:
    batch = load_recipe(name).contract.global_batch_size
    seen: set[tuple[int, int, int]] = set()
    for gpus in ("1x1", "1x8", "2x8", "8x8"):
        ranked, _ = plan(build({"recipe": name, "cluster": "dgx-h100", "gpus": gpus}), 5)
        seen |= {triple(each.strategy) for each in ranked}
    assert len(seen) > 1
    for ranks, micro, accumulation in seen:
        assert read_by(ranks, micro, accumulation) == [[*range(k * batch, (k + 1) * batch)] for k in range(STEPS)]


def triple(strategy: Strategy) -> tuple[int, int, int]:
    return strategy.dp, strategy.micro_batch_size, strategy.gradient_accumulation_steps
