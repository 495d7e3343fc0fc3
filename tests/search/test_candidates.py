"""The search space is whole: every factorisation, every switch, and pins narrow it."""

import math
from itertools import product

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requests import request_for
from tests.search.whole_space import blocks
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
    for block in blocks(request_for(model="mixtral-8x7b", gpus=64)):
        rows = numpy.stack(
            [
                getattr(block, name) + numpy.zeros(len(block.dp), int)
                for name in Strategy.__struct_fields__
                if name != "framework"
            ],
            axis=1,
        )
        assert len(numpy.unique(rows, axis=0)) == len(rows), block.framework


def test_expert_degrees_are_searched_for_a_mixture_of_experts() -> None:
    (block,) = blocks(request_for(model="mixtral-8x7b", gpus=64, framework="megatron"))
    assert set(block.ep) == {1, 2, 4, 8}
    assert ((block.etp == 1) | (block.etp == block.tp)).all()
    assert ((block.etp == 1) & (block.tp > 1)).any()
