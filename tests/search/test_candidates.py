"""The search space is whole: every factorisation, every switch, and pins narrow it."""

import math
from itertools import product

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requests import request_for
from tests.search.whole_space import blocks, mask
from toolkit.search.candidates import divisors, grids
from toolkit.strategy import Strategy


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize("gpus", [1, 6, 8, 64, 96])
def test_grids_hold_every_factorisation_once(gpus: int) -> None:
    found = grids(gpus, {})
    expected = {
        (t, p, c, gpus // (t * p * c)) for t, p, c in product(divisors(gpus), repeat=3) if gpus % (t * p * c) == 0
    }
    assert set(found) == expected
    assert len(found) == len(expected)


def test_the_number_of_grids_of_a_power_of_two() -> None:
    # 2^6 in four ordered factors: C(6 + 3, 3)
    assert len(grids(64, {})) == math.comb(9, 3)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([1, 2, 8, "2x6", 64, 512]), st.sampled_from([None, 1, 2, 4]))
def test_pins_hold_in_every_candidate(gpus: int | str, tp: int | None) -> None:
    pins = {} if tp is None else {"tp": tp}
    for block in blocks(request_for(gpus=gpus, framework="megatron", pins=pins)):
        if tp is not None:
            assert (block.tp == tp).all()


def test_candidates_are_distinct() -> None:
    for block in blocks(request_for(model="mixtral-8x7b", gpus=16, global_batch=16)):
        columns = [getattr(block, name) for name in Strategy.__struct_fields__]
        rows = numpy.stack([column for column in columns if not isinstance(column, (str, int))], axis=1)
        assert len(numpy.unique(rows, axis=0)) == len(rows), block.framework


def test_expert_degrees_are_searched_for_a_mixture_of_experts() -> None:
    block, *_ = blocks(request_for(model="mixtral-8x7b", gpus=64, framework="megatron"))
    assert set(block.ep) == {1, 2, 4, 8}
    assert set(block.etp) == {1, 2, 4, 8}  # of its own, not that of tp
    assert ((block.etp == 2) & (block.tp == 4)).any()


def test_experts_are_cut_no_further_than_a_fast_link_reaches_or_their_width_divides() -> None:
    request = request_for(model="mixtral-8x7b", gpus=64, framework="megatron")
    narrow = msgspec.structs.replace(request.model, moe_intermediate_size=2 * 3 * 5)
    block, *_ = blocks(request.replace(model=narrow))
    assert set(block.etp) == {1, 2}


def test_every_way_of_sharing_keys_has_its_layouts() -> None:
    found = {block.cp_method: block for block in blocks(request_for(gpus=64, framework="megatron"))}
    assert list(found) == ["p2p", "all_gather", "a2a", "a2a+p2p"]
    assert (found["p2p"].cp == 1).any()
    for method in ("all_gather", "a2a", "a2a+p2p"):
        assert (found[method].cp > 1).all()
    assert sum(len(block.dp) for block in found.values()) == len(found["p2p"].dp) + 3 * (found["p2p"].cp > 1).sum()


@pytest.mark.parametrize(("gpus", "tp", "pp"), [("2x6", 3, 1), ("2x6", 6, 2), ("6x8", 6, 8), ("641x8", 8, 641)])
def test_degrees_need_not_be_powers_of_two(gpus: str, tp: int, pp: int) -> None:
    block, *_ = blocks(request_for(gpus=gpus, framework="megatron", pins={"tp": tp, "pp": pp}))
    assert len(block.dp)


@pytest.mark.parametrize(
    ("model", "gpus", "fields"),
    [
        ("gpt2-xl", "1x5", {"tp": 5}),  # 25 heads
        ("llama-2-7b", "5x8", {"pp": 5, "dp": 8}),  # 32 layers as 6 7 7 7 5
        ("llama-2-70b", "3x8", {"tp": 8, "pp": 3, "dp": 1}),
        ("opt-13b", "1x5", {"pp": 5}),
    ],
)
def test_odd_degrees_are_legal_where_heads_and_layers_divide(model: str, gpus: str, fields: dict[str, int]) -> None:
    request = request_for(model=model, gpus=gpus, framework="megatron", global_batch=120)
    block, *_ = blocks(request)
    alive = block.select(mask(request, block, {}))
    assert numpy.logical_and.reduce([getattr(alive, name) == value for name, value in fields.items()]).any()


def test_micro_batches_are_all_divisors_of_the_global_batch() -> None:
    block, *_ = blocks(request_for(gpus=8, global_batch=360, framework="ddp"))
    assert sorted(set(block.micro_batch_size.tolist())) == divisors(360)


def test_shared_copies_are_parts_of_a_node_or_whole_nodes() -> None:
    (block,) = blocks(request_for(gpus="3x8", framework="fsdp", global_batch=240))
    assert set(block.dp_shard) == {2, 4, 8, 24}
