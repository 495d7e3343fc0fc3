"""The search as a whole: counts add up, ranking is sound, and what it proposes evaluates the same alone."""

import numpy
import pytest

from tests.requests import asked, request_for
from toolkit.registry.calibrations import load_calibration
from toolkit.search.constraints import violated
from toolkit.search.misses import ways_to_fit
from toolkit.search.planner import search
from toolkit.search.rank import ladder
from toolkit.search.reasons import reasons
from toolkit.strategy import describe

CALIBRATION = load_calibration("assumed")


@pytest.fixture(scope="module")
def seven():
    request = request_for(gpus=64)
    return request, search(request, CALIBRATION, top=20)


def test_every_candidate_is_feasible_or_eliminated_once(seven) -> None:
    _, result = seven
    assert result.total == result.feasible + sum(result.eliminated.values())
    assert result.feasible > 100


def test_ranked_plans_are_legal_and_fit(seven) -> None:
    request, result = seven
    for choice in result.choices:
        assert violated(request, choice.strategy) == []
        assert choice.verdict in ("fits", "tight")
        assert choice.estimate.memory.total_bytes <= choice.limit_bytes


def test_layouts_are_shown_once(seven) -> None:
    _, result = seven
    layouts = [
        (
            s.framework,
            s.zero_stage if s.framework == "deepspeed" else 0,
            s.offload,
            s.hpz,
            s.dp_shard == s.dp,
            s.tp,
            s.pp,
            s.cp,
            s.ep,
        )
        for s in (choice.strategy for choice in result.choices)
    ]
    assert len(set(layouts)) == len(layouts)


def test_columns_and_one_plan_agree_exactly(seven) -> None:
    """What the search computed for a row is what the plan says."""
    _, result = seven
    for choice in result.choices[:5]:
        for block in result.blocks:
            if block.strategy.framework != choice.strategy.framework:
                continue
            same = numpy.ones(len(block.seconds), bool)
            for name in choice.strategy.__struct_fields__:
                if name != "framework":
                    same &= getattr(block.strategy, name) == getattr(choice.strategy, name)
            (row,) = numpy.flatnonzero(same)
            assert block.seconds[row] == choice.estimate.step.seconds
            assert block.total_bytes[row] == choice.estimate.memory.total_bytes


def test_no_fitting_candidate_beats_the_first_by_more_than_the_ladder_allows(seven) -> None:
    _, result = seven
    from toolkit.search.rank import PRICE_OF_RUNG

    best = result.choices[0].estimate.step.seconds
    fits = numpy.concatenate([b.seconds[b.verdict == 0] for b in result.blocks])
    assert fits.min() >= best / (1 + max(PRICE_OF_RUNG))


def test_the_memory_objective_orders_by_bytes() -> None:
    request = request_for(gpus=8).replace(objective="memory")
    result = search(request, CALIBRATION, top=10)
    totals = [c.estimate.memory.total_bytes for c in result.choices if c.verdict == "fits"]
    assert totals == sorted(totals)


def test_the_ladder_climbs_in_memory(seven) -> None:
    """Sharding more never needs more: DDP, ZeRO-1, ZeRO-2, ZeRO-3 fall in bytes per GPU."""
    _, result = seven
    least = [rung.least_bytes for rung in ladder(result.blocks)[:4]]
    assert least == sorted(least, reverse=True)


def test_reasons_speak_of_every_degree_that_is_used() -> None:
    request = request_for(model="llama-2-70b", gpus=64, framework="megatron")
    result = search(request, CALIBRATION, top=1)
    choice = result.choices[0]
    said = " ".join(reasons(request, result, choice))
    for axis in ("tp", "pp", "cp"):
        if getattr(choice.strategy, axis) > 1:
            assert f"{axis} {getattr(choice.strategy, axis)}" in said


def test_when_nothing_fits_the_ways_out_do_fit() -> None:
    request = request_for(model="llama-2-70b", gpus=8, accelerator="a100-40gb", pins={"zero_stage": 1})
    assert not search(request, CALIBRATION, top=1).choices
    ways = ways_to_fit(request, CALIBRATION)
    assert any(way.change.startswith("on ") for way in ways)
    assert all(way.total_bytes <= request.cluster.accelerator.memory_bytes for way in ways)


@pytest.mark.parametrize(
    "model,gpus",
    [
        ("llama-2-7b", "1"),
        ("llama-2-7b", "12"),
        ("mixtral-8x7b", "64"),
        ("gpt2", "2"),
        ("falcon-7b", "16"),
        ("deepseek-v3", "1024"),
    ],
)
def test_many_shapes_and_sizes_are_searched_without_complaint(model: str, gpus: str) -> None:
    made = asked(model=model, gpus=gpus if gpus != "12" else "2x6")
    result = search(made.request, made.calibration, top=3)
    assert result.total == result.feasible + sum(result.eliminated.values())
    for choice in result.choices:
        assert describe(choice.strategy)
        assert choice.estimate.step.lower_seconds <= choice.estimate.step.seconds <= choice.estimate.step.upper_seconds
