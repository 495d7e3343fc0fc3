"""A sweep: each count as it is alone, and what follows from the step times."""

import pytest

from tests.requests import request_for
from toolkit.estimate.speedup import benefit_per_cost
from toolkit.registry.calibrations import load_calibration
from toolkit.search.planner import search
from toolkit.search.sweep import Sweep, sweep

CALIBRATION = load_calibration("assumed")


@pytest.fixture(scope="module")
def found() -> Sweep:
    requests = [request_for(model="llama-2-13b", gpus=gpus, global_batch=64) for gpus in (1, 8, 16, 32, 64)]
    return sweep(requests, CALIBRATION)


def seconds(entry) -> float:
    return entry.choice.estimate.step.seconds


def test_each_count_has_the_plan_that_it_has_alone(found: Sweep) -> None:
    for entry in found.fitting:
        alone = search(entry.request, CALIBRATION, top=1)
        assert alone.choices[0].strategy == entry.choice.strategy
        assert seconds(entry) == alone.choices[0].estimate.step.seconds
        assert (entry.result.total, entry.result.feasible) == (alone.total, alone.feasible)


def test_what_does_not_fit_stays_in_the_list_with_its_nearest_miss() -> None:
    requests = [request_for(model="llama-3.1-70b", gpus=gpus, accelerator="a100-40gb") for gpus in (1, 2, 32)]
    found = sweep(requests, CALIBRATION)
    assert [entry.choice is None for entry in found.entries] == [True, True, False]
    for entry in found.entries[:2]:
        assert entry.nearest is not None and entry.nearest.verdict == "no" and entry.speed_up is None
    assert found.entries[2].efficiency == 1.0  # the smallest that fits
    assert found.knee is None and found.fastest == found.cheapest == found.leanest == 32
    assert {point.gpus for point in found.front} == {32}


def test_speed_up_and_efficiency_are_against_the_smallest_that_fits(found: Sweep) -> None:
    first = found.fitting[0]
    assert (first.speed_up, first.efficiency, first.marginal) == (1.0, 1.0, None)
    for before, entry in zip(found.fitting, found.fitting[1:], strict=False):
        assert entry.speed_up == pytest.approx(seconds(first) / seconds(entry))
        assert entry.efficiency == pytest.approx(entry.speed_up * first.gpus / entry.gpus)
        gain = seconds(before) / seconds(entry) - 1.0
        assert entry.marginal == pytest.approx(gain / (entry.gpus / before.gpus - 1.0))


def test_knee_fastest_cheapest_and_leanest(found: Sweep) -> None:
    fits = {entry.gpus: entry for entry in found.fitting}
    assert found.knee == max(fits, key=lambda n: benefit_per_cost(fits[n].efficiency, fits[n].speed_up))
    assert found.fastest == min(fits, key=lambda n: seconds(fits[n]))
    assert found.cheapest == min(fits, key=lambda n: n * seconds(fits[n]))
    assert found.leanest == min(fits, key=lambda n: fits[n].choice.estimate.memory.total_bytes)


def test_the_batch_of_64_leaves_a_knee_inside() -> None:
    """64 sequences on up to 4,096 GPUs: there is nothing left to share, so that the knee is no end of the range."""
    counts = (64, 256, 1024, 4096)
    found = sweep([request_for(model="llama-2-7b", gpus=gpus, global_batch=64) for gpus in counts], CALIBRATION)
    assert found.knee is not None and found.knee < 4096
    knee = next(entry for entry in found.fitting if entry.gpus == found.knee)
    for entry in found.fitting:  # four times the GPUs bring less than twice the speed beyond, and more before
        ratio = seconds(knee) / seconds(entry) / (entry.gpus / knee.gpus) ** 0.5
        assert ratio <= 1.0 + 1e-9


def test_nothing_fits() -> None:
    found = sweep([request_for(model="llama-3.1-405b", gpus=gpus) for gpus in (1, 2)], CALIBRATION)
    assert found.fitting == () and found.front == ()
    assert (found.knee, found.fastest, found.cheapest, found.leanest) == (None, None, None, None)
