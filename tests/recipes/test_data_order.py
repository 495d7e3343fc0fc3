"""Another layout never changes what a step reads: the sequences of all ranks together, by accelerate's own sampler."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recipes.finetune import data, packing
from recipes.schedule import total_steps
from tests import recipe_table
from toolkit.cli.plan import plan
from toolkit.cli.request import build
from toolkit.recipe import Contract
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


def sequences(dataset: int, samples: int, seed: int) -> data.Sequences:
    """A dataset whose sequences are told apart by their number, as a run of so many samples reads it."""
    tokens = np.repeat(np.arange(dataset, dtype=np.int32)[:, None], 2, axis=1)
    blocks = packing.Blocks(tokens, tokens, np.tile(np.arange(2, dtype=np.int32), (dataset, 1)), tokens[:, 0] * 0 + 2)
    return data.Sequences(blocks, samples, seed)


def seen_by(rank: int, ranks: int, micro: int, accumulation: int, steps: int) -> list[int]:
    """The places in the run's order that one rank reads: its micro batch of each round of all ranks."""
    rounds = steps * accumulation
    return [(at * ranks + rank) * micro + one for at in range(rounds) for one in range(micro)]


@given(
    st.integers(1, 300), st.integers(1, 16), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(0, 9)
)
@example(103, 8, 1, 1, 5, 42)  # a sampler that floors to 96 before it shuffles never shows 7 of them
def test_all_ranks_together_see_all_of_the_dataset(
    dataset: int, ranks: int, micro: int, accumulation: int, epochs: int, seed: int
) -> None:
    """In every epoch each sample once; what the last step has beyond them is of the next epoch, each at most once."""
    batch = ranks * micro * accumulation
    steps = total_steps(Contract(global_batch_size=batch, epochs=float(epochs)), dataset)
    assert steps == math.ceil(epochs * dataset / batch)  # none is dropped, and none is left to a step of its own
    run = sequences(dataset, steps * batch, seed)
    places = [at for rank in range(ranks) for at in seen_by(rank, ranks, micro, accumulation, steps)]
    assert sorted(places) == list(range(steps * batch))  # ranks share nothing and leave nothing
    seen = Counter(run.block_of(at) for at in places)
    assert set(seen) == set(range(dataset))
    rest = steps * batch - epochs * dataset
    assert 0 <= rest < batch
    least, more = divmod(steps * batch, dataset)
    assert sorted(seen.values()) == [least] * (dataset - more) + [least + 1] * more


@given(st.integers(1, 60), st.integers(1, 12))
@example(10, 4)
def test_no_window_of_accumulation_is_a_part_of_one(micro_batches: int, accumulation: int) -> None:
    """10 micro batches, 4 accumulated: 3 steps (ceil) of 4 each, the last filled from the next epoch.

    So no step has fewer samples than the learning rate is made for, and none divides by what it does not have.
    """
    steps = total_steps(Contract(global_batch_size=accumulation, epochs=1.0), micro_batches)
    run = sequences(micro_batches, steps * accumulation, 42)
    windows = [[run.block_of(step * accumulation + at) for at in range(accumulation)] for step in range(steps)]
    assert steps == -(-micro_batches // accumulation)
    read = [sample for window in windows for sample in window]
    assert sorted(read[:micro_batches]) == list(range(micro_batches))
    if accumulation <= micro_batches:
        assert len(set(read[micro_batches:])) == len(read) - micro_batches


documents = st.lists(st.lists(st.booleans(), min_size=1, max_size=30), max_size=20)


@given(documents, st.integers(2, 12), st.booleans())
def test_no_step_divides_by_zero(flags: list[list[bool]], length: int, divisible: bool) -> None:
    """A step's loss is divided by its own trained tokens: every sequence has one, whatever the documents are."""
    pieces = [
        packing.Piece(np.arange(len(each), dtype=np.int32), np.asarray([False, *each[1:]], bool), divisible)
        for each in flags
    ]
    for blocks, _ in (packing.stream(pieces, length), packing.whole(pieces, length, 0), packing.pad(pieces, length, 0)):
        assert (blocks.labels[:, 1:] != packing.IGNORED).any(axis=1).all()
