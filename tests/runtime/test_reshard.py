"""By which way a checkpoint gets into another layout, and which cannot."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.runtime.reshard import DISTRIBUTED, PLAIN, UNIVERSAL, route


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


@pytest.mark.parametrize(("old", "new"), [(0, 2), (3, 0)])
def test_stage_0_and_the_others_do_not_read_each_other(old: int, new: int) -> None:
    with pytest.raises(ToolkitError, match=f"has no stage 0\n  plan again with --zero {old}"):
        route(layout(zero=old), layout(zero=new))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw_8bit", "adamw_paged"])
def test_only_adams_moments_have_a_universal_form(optimizer: str) -> None:
    same, other = layout(optimizer=optimizer), layout(optimizer=optimizer, ranks=4)
    assert route(same, same).kind == PLAIN
    with pytest.raises(ToolkitError, match=f"two moments of Adam, and the optimizer is {optimizer}\n  resume with"):
        route(same, other)


def test_sums_in_fp32_are_another_optimizer_of_deepspeed() -> None:
    assert route(layout(zero=1), layout(zero=1, gradient_accumulation_dtype="fp32")).kind == UNIVERSAL


@pytest.mark.parametrize("frameworks", [("ddp", "deepspeed"), ("deepspeed", "fsdp"), ("fsdp", "megatron")])
def test_no_framework_reads_another(frameworks: tuple[str, str]) -> None:
    with pytest.raises(ToolkitError, match=r"--framework .*, or start anew from its weights: toolkit ckpt convert"):
        route(layout(frameworks[0]), layout(frameworks[1]))


def test_megatron_cuts_tensors_anew() -> None:
    old = layout("megatron", 1, 4, tp=2)
    assert route(old, old).kind == PLAIN
    assert route(old, layout("megatron", 1, 8, pp=4)) == (DISTRIBUTED, "tp 2 to 1, pp 1 to 4")


def test_megatron_tells_all_that_cannot_be() -> None:
    with pytest.raises(ToolkitError) as raised:
        route(layout("megatron", 1, 4, ep=4), layout("megatron", 0, 4))
    assert [problem.remedy for problem in raised.value.problems] == [
        "plan again with --zero 1",
        "the optimizer state cannot go between ep 1 and more; any ep above 1 can follow any other",
    ]


def test_what_an_older_checkpoint_does_not_tell_is_as_wanted() -> None:
    assert route({"framework": "deepspeed"}, layout()).kind == PLAIN
