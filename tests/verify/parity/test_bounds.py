"""The bounds hold of real sums in other orders, and of Adam on gradients that differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.finetune_runs import MODEL
from toolkit.recipe import Contract
from toolkit.verify.parity import bounds
from toolkit.verify.parity.bounds import UNIT_ROUNDOFF, Tolerances, UpdateBound
from toolkit.verify.parity.compare import mean_of_means, token_weighted

CONTRACT = Contract(sequence_length=128, global_batch_size=16, learning_rate=1e-3, weight_decay=0.0)


def test_unit_roundoff_is_half_the_machine_epsilon_of_float32() -> None:
    assert float(np.finfo(np.float32).eps) / 2.0 == UNIT_ROUNDOFF


@given(some.integers(2, 4096), some.integers(0, 2**32 - 1))
def test_sums_in_two_orders_differ_less_than_the_bound(length: int, seed: int) -> None:
    """Positive terms, so the result is as large as the sum of the terms' sizes; one at a time in both orders."""
    values = np.random.default_rng(seed).random(length).astype(np.float32)
    one, other = np.cumsum(values)[-1], np.cumsum(values[::-1])[-1]
    bound = bounds.relative_difference(bounds.confidence(1.0, bounds.FALSE_ALARM), float(length))
    assert abs(float(one) - float(other)) <= bound * float(one)


def test_roundings_by_hand() -> None:
    # 2 layers, h 64, 4 heads and 2 groups of 16, 32 tokens, f 96, V 260
    assert bounds.forward_roundings(2, 64, 4, 16, 32, 96, 260) == 2 * (256 + 64 + 16 + 64 + 96) + 128 + 260
    assert bounds.backward_roundings(2, 64, 4, 2, 16, 32, 96, 260) == 2 * (256 + 128 + 32 + 64 + 192) + 128 + 260


def test_the_shares_of_a_moment_sum_to_one() -> None:
    for beta in (0.9, 0.95, 0.999):
        for step in (1, 2, 7):
            assert sum(bounds.moment_share(beta, step, i) for i in range(1, step + 1)) == pytest.approx(1.0)


def test_a_tolerance_says_no_to_one_token_in_a_thousand() -> None:
    """Tight enough to see a wrong divisor: a step of 2,048 tokens, one of which is left out, fails."""
    allowed = Tolerances(MODEL, CONTRACT, 5_000_000, 33_280)
    assert allowed.loss(5.6, 0.0) < 5.6 / 2048
    assert allowed.gradient(1.0, 0.0) < 1.0 / 2048
    assert allowed.loss(5.6, 0.0) > 10 * 4.8e-7  # differences that were measured over 20 steps


@given(some.integers(0, 2**32 - 1), some.sampled_from([1e-12, 1e-8, 1e-3, 1.0]))
def test_adam_moves_no_farther_apart_than_its_bound(seed: int, size: float) -> None:
    """Two runs in float64 on gradients that differ by one part in 10,000, and by all where they are tiny."""
    draw = np.random.default_rng(seed)
    weights = [draw.normal(size=20) for _ in range(1)] * 2
    moments = [[np.zeros(20), np.zeros(20)] for _ in range(2)]
    update, rate = UpdateBound(CONTRACT), 1e-3
    for step in range(1, 5):
        first = draw.normal(size=20) * size
        gradients = [first, first * (1 + 1e-4 * draw.normal(size=20)) + 1e-9 * draw.normal(size=20)]
        apart = np.abs(weights[0] - weights[1])
        for run in range(2):
            m, v = moments[run]
            m += (1 - CONTRACT.adam_beta1) * (gradients[run] - m)
            v += (1 - CONTRACT.adam_beta2) * (gradients[run] ** 2 - v)
            hat_m, hat_v = m / (1 - CONTRACT.adam_beta1**step), v / (1 - CONTRACT.adam_beta2**step)
            weights[run] = weights[run] - rate * hat_m / (np.sqrt(hat_v) + CONTRACT.adam_epsilon)
        bound = update.step(gradients[0], gradients[1], apart, weights[0], rate)
        assert np.all(np.abs(weights[0] - weights[1]) <= bound)


def test_a_gradient_of_nothing_may_turn_an_update_round_and_no_more() -> None:
    update = UpdateBound(CONTRACT)
    bound = update.step(np.array([1e-3]), np.array([-1e-9]), np.zeros(1), np.zeros(1), 1.0)
    assert bound[0] == pytest.approx(2.0, rel=1e-5)


def test_both_ways_to_normalise_accumulated_losses() -> None:
    """transformers pull request 34191: micro-batches of 10 and 90 tokens with mean losses 4 and 2."""
    micro = [(40.0, 10), (180.0, 90)]
    assert token_weighted(micro) == pytest.approx(2.20)
    assert mean_of_means(micro) == pytest.approx(3.00)
    equal = [(40.0, 10), (20.0, 10)]
    assert token_weighted(equal) == mean_of_means(equal)
    assert token_weighted([(0.0, 0)]) is None and mean_of_means([(0.0, 0), (20.0, 10)]) == 2.0


def test_confidence_grows_slowly_with_what_is_compared() -> None:
    assert bounds.confidence(1e6, 1e-3) == pytest.approx(math.sqrt(2 * math.log(2e9)))
    assert bounds.confidence(1e9, 1e-3) < 1.3 * bounds.confidence(1e6, 1e-3)
