"""Failures and checkpoints: identities, the exact optimum, a simulation, and what was counted in real runs."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requests import asked
from toolkit.estimate.resilience import (
    checkpoint_bytes,
    checkpoint_interval_seconds,
    failure_interval_seconds,
    goodput,
    interruptions,
    resilience,
    transfer_seconds,
)
from toolkit.resilience import Reliability

HOUR = 3600.0


def test_the_failures_of_llama_3() -> None:
    """419 unexpected interruptions in 54 days on 16,384 GPUs: 50,700 GPU-hours each, one in about three hours."""
    between = failure_interval_seconds(50_700 * HOUR, 16_384)
    assert between == pytest.approx(3.09 * HOUR, rel=0.01)
    assert interruptions(54 * 24 * HOUR, 1.0, between) == pytest.approx(419, rel=0.001)


def test_the_example_of_the_document() -> None:
    text = " ".join((Path(__file__).parent.parent.parent / "docs" / "maths.md").read_text().split())
    between = failure_interval_seconds(50_700 * HOUR, 16_384)
    expected = interruptions(54 * 24 * HOUR, 1.0, between)
    assert f"a failure every {between / HOUR:.3f} hours (R4), {expected:.1f} of them in 54 days; 419 were" in text


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, 1.8), (131_072, 0.233)])
def test_the_projections_of_meta(gpus: int, hours: float) -> None:
    """arXiv 2410.21680: 1.8 hours at 16,384 GPUs, 14 minutes at 131,072, at 6.5 failures per 1,000 node-days."""
    gpu_hours = 1000 * 24 * 8 / 6.5
    assert failure_interval_seconds(gpu_hours * HOUR, gpus) == pytest.approx(hours * HOUR, rel=0.04)


def test_the_checkpoint_of_bloom() -> None:
    """2.3 TB for 176 billion parameters in mixed precision, in 40 s at 57.5 GB/s."""
    size = checkpoint_bytes(176.25e9, 2.0, 4.0, 8.0)
    assert size == pytest.approx(2.3e12, rel=0.08)
    assert transfer_seconds(2.3e12, 48 * 1.2e9) == pytest.approx(40, rel=0.01)


@pytest.mark.parametrize(
    ("gpus", "stall", "low", "high"), [(64, 60.0, 3.9, 5.1), (512, 60.0, 1.4, 1.8), (512, 6.3, 0.45, 0.6)]
)
def test_young_intervals_of_published_rates(gpus: int, stall: float, low: float, high: float) -> None:
    for hours, expected in ((29_500, low), (50_700, high)):
        found = checkpoint_interval_seconds(stall, failure_interval_seconds(hours * HOUR, gpus))
        assert found == pytest.approx(expected * HOUR, rel=0.03)


@given(st.floats(1.0, 1e4), st.floats(1e3, 1e8), st.floats(0.05, 20.0), st.floats(0.0, 1e4))
def test_no_other_interval_keeps_noticeably_more(delta: float, between: float, factor: float, restart: float) -> None:
    """Daly's formula is the optimum of R8 to 0.1 % of the time, in all of its range."""
    best = checkpoint_interval_seconds(delta, between)
    other = goodput(best * factor, delta, restart, between)
    assert goodput(best, delta, restart, between) >= other * (1.0 - 1.1e-3)
    assert 0.0 <= other <= 1.0


@given(st.floats(1.0, 1e3), st.floats(1e5, 1e8))
def test_its_first_term_is_young(delta: float, between: float) -> None:
    young = (2.0 * delta * between) ** 0.5
    share = (delta / (2.0 * between)) ** 0.5
    assert checkpoint_interval_seconds(delta, between) == pytest.approx(young, rel=1.1 * share + 1e-9)


def test_a_job_that_fails_faster_than_it_saves() -> None:
    assert checkpoint_interval_seconds(1000.0, 400.0) == 400.0
    assert goodput(400.0, 1e9, 600.0, 400.0) == 0.0  # and nothing overflows


def simulated(tau: float, delta: float, restart: float, between: float, seed: int) -> float:
    """Share of kept time in a long run with random failures, also while it saves and restarts."""
    dice, clock, kept = random.Random(seed), 0.0, 0.0
    failure = dice.expovariate(1.0 / between)
    while kept < 4000 * tau:
        if clock + tau + delta <= failure:
            clock, kept = clock + tau + delta, kept + tau
            continue
        clock = failure
        while True:  # a restart can fail as well
            failure = clock + dice.expovariate(1.0 / between)
            if failure >= clock + restart:
                clock += restart
                break
            clock = failure
    return kept / clock


@pytest.mark.parametrize(
    ("tau", "delta", "restart", "between"), [(1000.0, 60.0, 300.0, 20_000.0), (2000.0, 200.0, 900.0, 4000.0)]
)
def test_goodput_is_what_a_simulation_keeps(tau: float, delta: float, restart: float, between: float) -> None:
    mean = sum(simulated(tau, delta, restart, between, seed) for seed in range(4)) / 4
    assert goodput(tau, delta, restart, between) == pytest.approx(mean, rel=0.02)


def found_for(framework: str = "megatron", known: Reliability | None = None, **options: object):
    request = asked(model="llama-2-7b", gpus="64", **options).request
    known = known or Reliability(
        gpu_seconds_per_failure=5e4 * HOUR, restart_seconds=600.0, storage_bytes_per_second=1e10
    )
    return resilience(request.model, request.workload, framework, 64, 6.0, known, 238_419)


@pytest.mark.parametrize(("framework", "bytes_each"), [("megatron", 14), ("deepspeed", 14), ("fsdp", 12), ("ddp", 12)])
def test_a_checkpoint_holds_what_the_framework_keeps(framework: str, bytes_each: int) -> None:
    assert found_for(framework).checkpoint_bytes == bytes_each * 6738415616


def test_adapters_make_a_small_checkpoint() -> None:
    assert found_for("deepspeed", method="lora").checkpoint_bytes < 0.01 * found_for("deepspeed").checkpoint_bytes


def test_the_interval_is_whole_steps_and_no_longer_than_the_run() -> None:
    found = found_for()
    assert found.checkpoint_steps == int(found.checkpoint_interval_seconds // 6.0)
    assert found.goodput == goodput(
        6.0 * found.checkpoint_steps, found.checkpoint_seconds, found.restart_seconds, found.failure_interval_seconds
    )
    assert found.run_seconds == pytest.approx(238_419 * 6.0 / found.goodput)
    assert found.interruptions == pytest.approx((found.run_seconds or 0.0) / found.failure_interval_seconds)
    never = Reliability(gpu_seconds_per_failure=1e15, restart_seconds=600.0, storage_bytes_per_second=1e10)
    assert found_for(known=never).checkpoint_steps == 238_419


@given(st.floats(1.0, 1e12), st.floats(0.0, 1e6), st.floats(1e3, 1e13))
@settings(deadline=None)
def test_any_cluster_gives_figures_that_can_be_written(failure: float, restart: float, storage: float) -> None:
    found = found_for(
        known=Reliability(gpu_seconds_per_failure=failure, restart_seconds=restart, storage_bytes_per_second=storage)
    )
    assert 0.0 <= found.goodput <= 1.0 and found.checkpoint_steps >= 1
    if found.run_seconds is None:
        assert found.goodput <= 1e-3 and found.interruptions is None
    else:
        assert found.run_seconds >= 238_419 * 6.0
