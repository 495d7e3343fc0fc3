"""Names of layouts, and what a plan of them pins."""

from __future__ import annotations

import pytest

from toolkit.errors import ToolkitError
from toolkit.verify.parity.layouts import DEFAULT, batches, defaults, parse


def degrees(name: str, program: str = "pretrain") -> dict[str, object]:
    plain = {"framework", "recompute"}
    return {key: value for key, value in parse(name, program).items() if key not in plain and value not in (1, 0)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tp2", {"tp": 2, "gpus": "2"}),
        ("tp2+sp", {"tp": 2, "gpus": "2"}),
        ("tp2pp2", {"tp": 2, "pp": 2, "gpus": "4"}),
        ("TP2 + PP2".replace(" ", ""), {"tp": 2, "pp": 2, "gpus": "4"}),
        ("tp2xpp2", {"tp": 2, "pp": 2, "gpus": "4"}),
        ("pp2+vpp2", {"pp": 2, "virtual_pipeline_stages": 2, "gpus": "2"}),
        ("ep2", {"ep": 2, "dp": 2, "gpus": "2"}),
        ("zero1", {"dp": 2, "gpus": "2"}),
        ("zero1+dp4", {"dp": 4, "gpus": "4"}),
        ("ga4", {"gradient_accumulation_steps": 4, "gpus": "1"}),
    ],
)
def test_a_name_pins_its_degrees(name: str, expected: dict[str, object]) -> None:
    assert degrees(name) == expected


def test_sequence_parallelism_is_only_where_it_is_asked_for() -> None:
    assert parse("tp2+sp", "pretrain")["sequence_parallel"] is True
    assert parse("tp2", "pretrain")["sequence_parallel"] is False


@pytest.mark.parametrize("stage", range(4))
def test_zero_is_deepspeed_on_two_ranks(stage: int) -> None:
    found = parse(f"zero{stage}", "finetune")
    assert (found["framework"], found["zero_stage"], found["gpus"]) == ("deepspeed", stage, "2")


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("", "pretrain"),
        ("three", "pretrain"),
        ("tp2+tp4", "pretrain"),
        ("tp0", "pretrain"),
        ("zero4", "finetune"),
        ("zero2", "pretrain"),
        ("fsdp2", "pretrain"),
        ("tp2", "finetune"),
    ],
)
def test_what_is_no_layout_of_the_program_is_refused(name: str, program: str) -> None:
    with pytest.raises(ToolkitError):
        parse(name, program)


@pytest.mark.parametrize("program", DEFAULT)
def test_the_defaults_are_layouts(program: str) -> None:
    for name in defaults(program, experts=True):
        assert int(parse(name, program)["gpus"]) in (1, 2, 4)
    assert ("ep2" in defaults(program, True)) == (program == "pretrain")


def test_what_is_compared_unless_something_is_asked_for() -> None:
    assert {"zero0", "zero1", "zero2", "zero3", "fsdp2", "lora"} <= set(defaults("finetune", False))
    assert {"tp2", "pp2", "tp2+sp", "cp2", "ep2", "tp2+pp2", "pp2+vpp2"} <= set(defaults("pretrain", True))


def test_words_without_a_number() -> None:
    assert parse("fsdp", "finetune")["dp"] == parse("ddp", "finetune")["dp"] == parse("lora", "finetune")["dp"] == 2
    assert parse("lora", "finetune")["method"] == "lora" and "method" not in parse("fsdp2", "finetune")
    assert parse("zero3+lora", "finetune")["zero_stage"] == 3
    with pytest.raises(ToolkitError, match="no adapters"):
        parse("lora", "pretrain")


def test_a_pipeline_is_fed_in_pieces() -> None:
    assert batches(parse("pp2", "pretrain"), 16) == {"micro_batch_size": 4, "gradient_accumulation_steps": 4}
    assert batches(parse("tp2", "pretrain"), 16) == {"micro_batch_size": 16, "gradient_accumulation_steps": 1}
    assert batches(parse("ga2", "pretrain"), 16) == {"micro_batch_size": 8, "gradient_accumulation_steps": 2}
    assert batches(parse("pp2", "pretrain"), 6) == {"micro_batch_size": 3, "gradient_accumulation_steps": 2}


def test_balanced_over_micro_batches_every_layout_has_the_same_micro_batches() -> None:
    for name in ("dp1", "dp2", "ep2", "ep4", "pp2", "tp2"):
        assert batches(parse(name, "pretrain"), 16, one_cut=True)["micro_batch_size"] == 4
