"""The search as a whole: counts add up, ranking is sound, and what it proposes evaluates the same alone."""

from pathlib import Path

import msgspec
import numpy
import pytest

from tests.requests import asked, request_for
from toolkit.cli.request import larger_clusters, roomier_clusters
from toolkit.registry.calibrations import load_calibration
from toolkit.registry.clusters import resolve_cluster
from toolkit.search.constraints import violated
from toolkit.search.misses import ways_to_fit
from toolkit.search.planner import choose, search
from toolkit.search.rank import PRICE_OF_DOUBLING, PRICE_OF_RUNG, RUNGS, ladder, price
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
        found = []
        for block in result.blocks:
            same = numpy.ones(len(block.seconds), bool)
            for name in choice.strategy.__struct_fields__:
                same &= getattr(block.strategy, name) == getattr(choice.strategy, name)
            found += [(block.seconds[row], block.total_bytes[row]) for row in numpy.flatnonzero(same)]
        assert found == [(choice.estimate.step.seconds, choice.estimate.memory.total_bytes)]


def test_no_fitting_candidate_beats_the_first_by_more_than_its_complexity_must_earn(seven) -> None:
    _, result = seven
    first = result.choices[0]
    paid = first.estimate.step.seconds * (1 + price(first.strategy))
    for block in result.blocks:
        fits = block.verdict == 0
        assert (block.seconds * (1 + price(block.strategy)))[fits].min(initial=numpy.inf) >= paid * (1 - 1e-12)


def test_every_rung_has_a_price_and_prices_rise() -> None:
    assert len(PRICE_OF_RUNG) == len(RUNGS)
    assert list(PRICE_OF_RUNG) == sorted(PRICE_OF_RUNG)


def test_short_sequences_are_not_cut_for_a_gain_inside_the_error() -> None:
    """cp 2 with twice the micro batch is cp 1 with more messages: it does not come first, nor crowd the list."""
    request = request_for(model="llama-2-7b", gpus=64, framework="megatron")
    result = search(request, CALIBRATION, top=3)
    assert [choice.strategy.cp for choice in result.choices] == [1, 1, 1]


def test_a_ring_is_left_for_a_gain_only() -> None:
    """The same layout by another way of sharing keys comes first only where it is nearly 1 % faster."""
    request = request_for(model="llama-3.1-8b", gpus=64, framework="megatron", sequence_length=65536, global_batch=32)
    result = search(request, CALIBRATION, top=20)
    cut = [choice.strategy for choice in result.choices if choice.strategy.cp > 1]
    assert cut
    for strategy in cut:
        if strategy.cp_method != "p2p":
            ring = msgspec.structs.replace(strategy, cp_method="p2p")
            seconds = [choose(request, CALIBRATION, each).estimate.step.seconds for each in (strategy, ring)]
            assert seconds[0] < 0.993 * seconds[1]


def test_long_sequences_are_cut() -> None:
    request = request_for(model="llama-3.1-8b", gpus=64, framework="megatron", sequence_length=131072, global_batch=32)
    assert search(request, CALIBRATION, top=1).choices[0].strategy.cp > 1


def test_one_gpu_may_offload() -> None:
    """A 7B does not fit one GPU with Adam, and trains on one with its optimizer in host memory (ZeRO-Offload)."""
    request = request_for(gpus=1, accelerator="a100-80gb")
    best = search(request, CALIBRATION, top=1).choices[0]
    assert best.strategy.offload and best.strategy.zero_stage
    said = reasons(request, search(request, CALIBRATION, top=1), best)
    assert any("without it nothing fits" in sentence for sentence in said)


def test_the_memory_objective_orders_by_bytes() -> None:
    request = request_for(gpus=8).replace(objective="memory")
    result = search(request, CALIBRATION, top=10)
    totals = [c.estimate.memory.total_bytes for c in result.choices if c.verdict == "fits"]
    assert totals == sorted(totals)


def test_reasons_of_the_memory_objective_speak_of_bytes() -> None:
    request = request_for(gpus=8).replace(objective="memory")
    result = search(request, CALIBRATION, top=1)
    first, *others = reasons(request, result, result.choices[0])
    assert "other layouts need" in first
    assert not any("faster" in sentence or "slower" in sentence for sentence in others)


def test_a_batch_smaller_than_the_gpus_has_fewer_gpus_as_way_out() -> None:
    request = request_for(model="gpt2", gpus="100x8", framework="ddp", sequence_length=1024, global_batch=512)
    assert not search(request, CALIBRATION, top=1).choices
    assert any(way.change == "on 512 GPUs (64 x 8)" for way in ways_to_fit(request, CALIBRATION))


def test_ways_out_name_options_as_the_command_line_has_them() -> None:
    pins = {"offload": 0, "recompute": 0}
    request = request_for(model="mamba-2.8b", gpus=1, accelerator="t4", pins={"offload": 0})
    changes = [way.change for way in ways_to_fit(request, CALIBRATION)]
    assert "without --offload none" in changes  # and no adapters, which this model does not take
    request = request_for(gpus=8, accelerator="rtx-4090", pins=pins, framework="fsdp")
    assert "without --recompute none" in [way.change for way in ways_to_fit(request, CALIBRATION)]


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


def test_a_node_is_filled_before_a_second_one_is_asked_for() -> None:
    made = asked(model="llama-3.1-70b", gpus="2", accelerator="a100-80gb", framework="fsdp")
    ways = ways_to_fit(made.request, made.calibration, larger_clusters(made))
    (more,) = [way.change for way in ways if way.change.startswith("on ")]
    nodes, per_node = more.partition("(")[2].rstrip(")").split(" x ")
    assert int(per_node) == 8 or int(nodes) == 1


def test_no_sequence_for_every_gpu_has_a_larger_batch_as_way_out() -> None:
    request = request_for(gpus=64, framework="fsdp", global_batch=8)
    assert any("--global-batch 64" in way.change for way in ways_to_fit(request, CALIBRATION))


def test_reasons_of_a_lower_rank_do_not_call_a_faster_plan_too_complex(seven) -> None:
    """Whatever is ranked before a plan and faster is said to be ranked before it."""
    request, result = seven
    first = describe(result.choices[0].strategy)
    for choice in result.choices[1:]:
        for sentence in reasons(request, result, choice):
            assert not (sentence.startswith(first) and "must earn" in sentence)


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


@pytest.mark.parametrize(
    ("model", "gpus", "accelerator", "length"),
    [
        ("llama-3.1-70b", 2, "rtx-3090", 4096),
        ("llama-3.1-70b", 2, "rtx-4090", 512),
        ("qwen2.5-32b", 4, "t4", 1024),
        ("llama-3.1-405b", 8, "h100", 1024),
    ],
)
def test_a_4_bit_base_that_no_number_of_these_gpus_holds_has_larger_ones_as_way_out(
    model: str, gpus: int, accelerator: str, length: int
) -> None:
    """Each GPU holds it whole: the way out is more memory in one, the least of the same maker that does."""
    given = asked(
        model=model,
        gpus=str(gpus),
        accelerator=accelerator,
        method="qlora",
        sequence_length=length,
        precision="fp16" if accelerator == "t4" else "bf16",
    )
    request = given.request
    assert not search(request, CALIBRATION, top=1).choices
    ways = ways_to_fit(request, CALIBRATION, roomier=roomier_clusters(given))
    words = [way.change for way in ways if " x " in way.change and "(" not in way.change]
    assert len(words) == 1
    number, name = words[0].removeprefix("on ").split(" x ")
    cluster = resolve_cluster(number, accelerator=name)
    assert cluster.accelerator.vendor == request.cluster.accelerator.vendor
    assert search(request.replace(cluster=cluster), CALIBRATION, top=1).choices[0].verdict == "fits"
    smaller = [
        each
        for each in roomier_clusters(given)
        if each.accelerator.memory_bytes < 0.999 * cluster.accelerator.memory_bytes
    ]
    for each in smaller:
        found = search(request.replace(cluster=each), CALIBRATION, top=1).choices
        assert not found or found[0].verdict == "tight"


def test_larger_gpus_are_no_advice_where_more_of_these_do() -> None:
    given = asked(model="llama-3.1-70b", gpus="4", accelerator="a100-40gb", framework="fsdp")
    ways = ways_to_fit(given.request, CALIBRATION, roomier=roomier_clusters(given))
    assert ways and not any(" x " in way.change and "(" not in way.change for way in ways)


@pytest.mark.parametrize(
    ("model", "gpus", "options"),
    [
        ("llama-3.1-70b", 64, {}),
        ("llama-3.1-70b", 256, {}),
        ("gpt3-175b", 128, {"framework": "megatron"}),
        ("mixtral-8x7b", 64, {}),
        ("llama-2-13b", 16, {"accelerator": "a100-80gb"}),
    ],
)
def test_no_other_interleaving_of_a_ranked_layout_saves_time_and_memory_both(
    model: str, gpus: int, options: dict[str, str]
) -> None:
    """Micro batch, recomputation and virtual stages are no complexity: what is better in both comes in its place."""
    request = request_for(model=model, gpus=gpus, **options)
    result = search(request, CALIBRATION, top=5)
    same = ("tp", "pp", "cp", "ep", "zero_stage", "offload", "hpz", "dp_shard", "cp_method", "framework")
    for choice in result.choices:
        seconds, needed = choice.estimate.step.seconds, choice.estimate.memory.total_bytes
        for block in result.blocks:
            alike = numpy.ones(len(block.seconds), dtype=bool)
            for name in same:
                alike &= getattr(block.strategy, name) == getattr(choice.strategy, name)
            better = (block.seconds < seconds * (1 - 1e-9)) & (block.total_bytes < needed * (1 - 1e-9))
            assert not (alike & better & (block.verdict == 0)).any(), describe(choice.strategy)


def test_the_documents_state_the_prices_of_the_ladder() -> None:
    """The table of section L in docs/maths.md, and what it says that context parallelism must earn."""
    words = " ".join((Path(__file__).parents[2] / "docs" / "maths.md").read_text().split())
    percent = [round(100 * each, 1) for each in PRICE_OF_RUNG]
    rows = [percent[:4], percent[4:5], percent[5:9], percent[9:]]
    for row in rows:
        assert f"| {', '.join(f'{each:g}' for each in row)} % |" in words
    assert f"| {100 * PRICE_OF_DOUBLING:g} % |" in words
    for rung, name in enumerate(("one of Megatron's data", "tensor", "pipeline", "expert"), 4):
        earned = (1 + PRICE_OF_RUNG[8]) / (1 + PRICE_OF_RUNG[rung]) - 1
        assert f"{100 * earned:.1f} % " + ("faster than " if rung == 4 else "than ") + name in words
