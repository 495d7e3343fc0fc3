"""The scan of state-space mixers: its count, and that only models with such mixers pay for it."""

from __future__ import annotations

import pytest

from toolkit.estimate.scan import CHUNK, scan, scan_bytes, scan_flop
from toolkit.registry.models import load_model


def test_one_token_of_a_chunk_costs_what_the_products_of_the_chunk_cost() -> None:
    groups, chunk, state, inner = 8.0, 128.0, 256.0, 16384.0
    scores = 2.0 * chunk * chunk * state * groups  # C B^T
    values = 2.0 * chunk * chunk * inner  # scores X
    states = 2.0 * 2.0 * chunk * state * inner  # B^T X, and C times the state before
    assert scan_flop(groups, chunk, state, inner) == pytest.approx((scores + values + states) / chunk)


def test_without_a_state_the_convolution_and_the_gated_norm_are_left() -> None:
    assert scan_bytes(2.0, 100.0, 100.0, 0.0, CHUNK, 4.0) == 2.0 * (2 * 100 + 200 + 300)


@pytest.mark.parametrize(("name", "mixers"), [("nemotron-h-56b", 54), ("nemotron-3-nano-30b-a3b", 23)])
def test_the_average_layer_carries_its_share_of_the_mixers(name: str, mixers: int) -> None:
    model = load_model(name)
    assert model.layer_mixers.count("M") == mixers
    inner, state, groups = model.mamba_intermediate_size, model.state_size, model.mamba_groups
    one = scan_flop(float(groups), CHUNK, float(state), float(inner))
    assert scan(model, 2.0).flop == pytest.approx(mixers * one / model.num_hidden_layers)


def test_a_transformer_scans_nothing() -> None:
    assert scan(load_model("llama-3-8b"), 2.0) == (0.0, 0.0)


def test_the_hybrids_count_what_their_publishers_say() -> None:
    from toolkit.estimate.parameters import count_parameters

    assert count_parameters(load_model("nemotron-h-56b")).total == pytest.approx(56.3e9, rel=0.002)
    assert count_parameters(load_model("nemotron-3-nano-30b-a3b")).total == pytest.approx(31.6e9, rel=0.002)
