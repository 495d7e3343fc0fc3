"""By which way a checkpoint gets into another layout, and which cannot."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.runtime.reshard import DISTRIBUTED, PLAIN, REWRITTEN, UNIVERSAL, route


def layout(framework: str = "deepspeed", zero: int = 2, ranks: int = 2, **more: Any) -> dict[str, Any]:
    degrees = {"tp": 1, "pp": 1, "cp": 1, "ep": 1} | {
        name: more.pop(name) for name in ("tp", "pp", "ep") if name in more
    }
    return {
        "framework": framework,
        "zero_stage": zero,
        "world_size": ranks,
        "degrees": degrees | {"dp": ranks // (degrees["tp"] * degrees["pp"])},
        "optimizer": "adamw",
        "gradient_accumulation_dtype": "default",
    } | more


ZERO = st.integers(1, 3)
RANKS = st.integers(1, 4096)


@given(old=ZERO, new=ZERO, before=RANKS, after=RANKS)
def test_deepspeed_converts_exactly_where_stage_or_ranks_change(old: int, new: int, before: int, after: int) -> None:
    kind = route(layout(zero=old, ranks=before), layout(zero=new, ranks=after)).kind
    assert kind == (PLAIN if (old, before) == (new, after) else UNIVERSAL)


@given(framework=st.sampled_from(["ddp", "fsdp"]), before=RANKS, after=RANKS)
def test_ddp_and_fsdp_load_on_any_ranks(framework: str, before: int, after: int) -> None:
    assert route(layout(framework, ranks=before), layout(framework, ranks=after)).kind == PLAIN
    assert route(layout(zero=0, ranks=before), layout(zero=0, ranks=after)).kind == PLAIN


@given(zero=ZERO, before=RANKS, after=RANKS)
def test_stage_0_goes_to_the_others_and_back(zero: int, before: int, after: int) -> None:
    assert route(layout(zero=0, ranks=before), layout(zero=zero, ranks=after)).kind == UNIVERSAL
    assert route(layout(zero=zero, ranks=before), layout(zero=0, ranks=after)).kind == REWRITTEN


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_unfused", "sgd"])
def test_states_of_whole_weights_go_anywhere(optimizer: str) -> None:
    layouts = [layout("ddp", 0), layout("fsdp", 3), layout(zero=0), *(layout(zero=zero) for zero in (1, 2, 3))]
    for old in layouts:
        for new in layouts:
            kind = route(old | {"optimizer": optimizer}, new | {"optimizer": optimizer}).kind
            sharded = new["framework"] == "deepspeed" and new["zero_stage"]
            assert kind == (PLAIN if old == new else UNIVERSAL if sharded else REWRITTEN)


@pytest.mark.parametrize("optimizer", ["adamw_8bit", "adamw_8bit_paged", "adamw_paged"])
@pytest.mark.parametrize("other", [layout(ranks=4), layout("ddp", 0), layout(zero=0)], ids=["ranks", "ddp", "stage"])
def test_states_in_blocks_stay_where_they_are(optimizer: str, other: dict[str, Any]) -> None:
    same = layout(optimizer=optimizer)
    assert route(same, same).kind == PLAIN
    with pytest.raises(ToolkitError, match=f"the states of {optimizer} are blocks .*\n  resume with"):
        route(same, other | {"optimizer": optimizer})


def test_sums_in_fp32_are_another_optimizer_of_deepspeed() -> None:
    assert route(layout(zero=1), layout(zero=1, gradient_accumulation_dtype="fp32")).kind == UNIVERSAL


@pytest.mark.parametrize("frameworks", [("ddp", "megatron"), ("megatron", "deepspeed"), ("fsdp", "megatron")])
def test_no_program_reads_another(frameworks: tuple[str, str]) -> None:
    with pytest.raises(ToolkitError, match=r"--framework .*, or start anew from its weights: toolkit ckpt convert"):
        route(layout(frameworks[0]), layout(frameworks[1]))


def test_megatron_cuts_tensors_anew() -> None:
    old = layout("megatron", 1, 4, tp=2)
    assert route(old, old).kind == PLAIN
    assert route(old, layout("megatron", 1, 8, pp=4)) == (DISTRIBUTED, "tp 2 to 1, pp 1 to 4")


def test_megatron_changes_optimizers_and_experts() -> None:
    old, new = layout("megatron", 1, 4, ep=4), layout("megatron", 0, 4)
    assert route(old, new) == (DISTRIBUTED, "ep 4 to 1, the distributed one to the ordinary optimizer")
    assert route(new, old) == (DISTRIBUTED, "ep 1 to 4, the ordinary optimizer to the distributed one")
    assert route(layout("megatron", 1), layout("megatron", 2)).kind == PLAIN


def test_what_an_older_checkpoint_does_not_tell_is_as_wanted() -> None:
    assert route({"framework": "deepspeed"}, layout()).kind == PLAIN
