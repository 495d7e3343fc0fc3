"""The pipeline bubble against its published closed forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.machines import cluster, gpt, timed
from toolkit.estimate.pipeline import balanced_layers, bubble_fraction, bubble_seconds, zero_bubble_seconds
from toolkit.strategy import Strategy
from toolkit.workload import Workload


@given(pipeline=st.integers(1, 64), micro=st.integers(1, 4096), virtual=st.integers(1, 12))
def test_bubble_fraction(pipeline: int, micro: int, virtual: int) -> None:
    """(p - 1)/(v m): Narayanan et al. 2021, section 2.2."""
    assert bubble_fraction(pipeline, micro, virtual) == (pipeline - 1) / (virtual * micro)
    stage = 0.5
    share = bubble_seconds(pipeline, virtual, stage) / (micro * stage)
    assert share == pytest.approx(bubble_fraction(pipeline, micro, virtual), rel=1e-12)


def test_no_pipeline_no_bubble() -> None:
    """One stage is never idle."""
    assert bubble_seconds(1, 1, 1.0) == 0.0


@pytest.mark.parametrize("virtual", [1, 2, 4])
def test_the_step_holds_the_published_fraction(virtual: int) -> None:
    """With a negligible head and no tensor parallelism the bubble of a step is (p - 1)/(v m) of its compute."""
    model = gpt(32, 4096, 32, vocab_size=128)
    workload = Workload(sequence_length=2048, global_batch_size=64)
    strategy = Strategy(
        framework="megatron",
        pp=8,
        virtual_pipeline_stages=virtual,
        micro_batch_size=1,
        gradient_accumulation_steps=64,
    )
    _, step = timed(model, cluster(8), workload, strategy)
    assert step.bubble_seconds / step.compute_seconds == pytest.approx(7 / (virtual * 64), rel=0.005)


def test_zero_bubble_where_the_three_parts_are_equal() -> None:
    """Arithmetic of arXiv 2401.10241, table 2, with F = B = W: a third of 1F1B for H1, nothing for H2."""
    plain = bubble_seconds(8, 1, 3.0)
    assert zero_bubble_seconds(8, 1.0, 1.0, 1.0, 1.0) == plain / 3
    assert zero_bubble_seconds(8, 1.0, 1.0, 1.0, 2.0) == 0.0


@given(st.integers(2, 64), st.integers(1, 40), st.floats(0.0, 8.0))
def test_no_split_of_layers_beside_a_head_is_faster(pp: int, each: int, head: float) -> None:
    """Equation T27 against every number of layers that the last stage could have."""
    layers = pp * each
    best = min(max(-(-(layers - last) // (pp - 1)), last + head) for last in range(layers))
    assert balanced_layers(layers, pp, head) <= best + 1.0
    assert balanced_layers(layers, pp, head) >= best
