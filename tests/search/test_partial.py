"""Recomputing some layers: the number is solved for, and what is found is what trying every number finds."""

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requests import request_for
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.verdict import COMFORT
from toolkit.registry.calibrations import load_calibration
from toolkit.search.candidates import spaces
from toolkit.search.constraints import Sieve
from toolkit.search.crossing import grow, ways
from toolkit.search.partial import at_depth, depths, fewest
from toolkit.search.planner import search
from toolkit.search.reasons import reasons
from toolkit.search.request import Request
from toolkit.strategy import Strategy

CALIBRATION = load_calibration("assumed")
JOBS: dict[str, dict[str, Any]] = {
    "dense": {"gpus": 16, "global_batch": 64, "accelerator": "a100-40gb"},
    "stages": {"model": "llama-2-13b", "gpus": 16, "global_batch": 16, "pins": {"pp": 4}},
    "uneven": {"model": "llama-2-13b", "gpus": "3x8", "global_batch": 24, "pins": {"pp": 3}},
    "experts": {"model": "mixtral-8x7b", "gpus": 32, "global_batch": 32, "pins": {"etp": 1, "sequence_parallel": 1}},
    "long": {"gpus": 8, "global_batch": 8, "sequence_length": 65536},
    "mixed": {"model": "deepseek-v2-lite", "gpus": 16, "global_batch": 16, "pins": {"zero_stage": 1}},
}


def every_number(request: Request) -> tuple[int, int, float]:
    """Of all candidates with some layers recomputed: how many, how many fit, and the least seconds of those."""
    total = feasible = 0
    least = numpy.inf
    limit = request.cluster.accelerator.memory_bytes
    for space in spaces(request):
        sieve = Sieve(request, space, {})
        pieces = grow(request, space, sieve)
        for legal in (way.select(sieve.legal(way)) for rows in pieces for way, _ in ways(space, rows)):
            full = legal.select(legal.recompute == 2)
            most = depths(request.model.num_hidden_layers, full)
            rows = numpy.repeat(numpy.arange(len(most)), most)
            if not len(rows):
                continue
            depth = numpy.concatenate([numpy.arange(1, number + 1) for number in most])
            strategy = at_depth(full.select(rows), depth)
            found = evaluate(request.model, request.cluster, request.workload, strategy, CALIBRATION)
            fits = found.memory.total_bytes <= limit
            total += len(rows)
            feasible += int(fits.sum())
            least = min(least, float((found.step.seconds + numpy.zeros(len(rows)))[fits].min(initial=numpy.inf)))
    return total, feasible, least


@pytest.mark.parametrize("name", JOBS)
def test_what_is_solved_for_is_what_trying_every_number_finds(name: str) -> None:
    request = request_for(framework="megatron", **JOBS[name])
    total, feasible, least = every_number(request)
    result = search(request, CALIBRATION, top=1)
    without = search(request.replace(pins=request.pins | {"recompute_layers": 0}), CALIBRATION, top=1)
    assert total > 0
    # numbers of a micro batch that could not fit whatever else is chosen are not laid out
    assert 0 < result.total - without.total <= total
    assert result.feasible - without.feasible == feasible
    assert result.total == result.feasible + sum(result.eliminated.values())
    best = min(block.seconds.min() for block in result.blocks)
    assert best == min(least, min(block.seconds.min() for block in without.blocks))


@given(st.lists(st.tuples(st.floats(1.0, 1e3), st.floats(0.0, 50.0), st.integers(1, 60)), min_size=1, max_size=20))
def test_the_fewest_of_any_falling_bytes(rows: list[tuple[float, float, int]]) -> None:
    """``a - b*n``, bent at half of the way: the least number within each limit, or 0."""
    a, b, most = (numpy.array(column) for column in zip(*rows, strict=True))

    def bytes_of(row: Any, depth: Any) -> Any:
        return numpy.maximum(a[row] - b[row] * depth, a[row] - b[row] * most[row] / 2 - 0.1 * b[row] * depth)

    strategy = Strategy(framework="megatron", dp=numpy.arange(len(rows)), virtual_pipeline_stages=numpy.ones_like(most))
    limits = (100.0, 60.0)
    found = fewest(strategy, most, lambda s: bytes_of(s.dp, s.recompute_layers), limits)
    for limit, depth in zip(limits, found, strict=True):
        for row in range(len(rows)):
            fitting = [n for n in range(1, most[row] + 1) if bytes_of(row, n) <= limit]
            assert depth[row] == (min(fitting) if fitting else 0)


def test_some_layers_come_before_all_where_they_fit_and_are_faster() -> None:
    """A layer that need not run again is time saved: the plan recomputes as many as it must, and says so."""
    pins = {"tp": 2, "pp": 1}
    request = request_for(gpus=8, accelerator="a100-40gb", framework="megatron", global_batch=64, pins=pins)
    result = search(request, CALIBRATION, top=1)
    best = result.choices[0]
    s = best.strategy
    assert s.recompute == 2 and 0 < s.recompute_layers < 32
    fewer = at_depth(s, s.recompute_layers // s.virtual_pipeline_stages - 1)
    more = evaluate(request.model, request.cluster, request.workload, fewer, CALIBRATION)
    assert more.memory.total_bytes > COMFORT * request.cluster.accelerator.memory_bytes
    said = " ".join(reasons(request, result, best))
    assert f"recomputation of {s.recompute_layers} of the 32 layers of a stage, the fewest that fit" in said
    assert "all of them would take" in said and "% longer" in said


def test_all_layers_are_not_recomputed_where_some_would_do() -> None:
    """Of two plans that differ in the number only, the one that recomputes fewer is ranked."""
    for gpus, accelerator in ((16, "a100-40gb"), (8, "h100")):
        request = request_for(model="llama-2-13b", gpus=gpus, accelerator=accelerator, framework="megatron")
        result = search(request, CALIBRATION, top=200)
        for choice in result.choices:
            s = choice.strategy
            if s.recompute == 2 and not s.recompute_layers and choice.verdict == "fits":
                most = int(depths(40, s))
                if most > 0:
                    fewer = at_depth(s, most)
                    held = evaluate(request.model, request.cluster, request.workload, fewer, CALIBRATION).memory
                    assert held.total_bytes > COMFORT * choice.limit_bytes


def test_pinned_numbers_are_kept() -> None:
    request = request_for(gpus=8, framework="megatron", global_batch=64, pins={"recompute_layers": 12})
    for choice in search(request, CALIBRATION, top=5).choices:
        assert (choice.strategy.recompute, choice.strategy.recompute_layers) == (2, 12)
