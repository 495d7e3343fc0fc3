"""Budgets: every way people write them, and what is refused with a remedy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.budgets import Budget, parse_budget
from toolkit.errors import ToolkitError


@pytest.mark.parametrize(
    ("text", "flop"),
    [
        ("1e24", 1e24),
        ("5.76e23 FLOP", 5.76e23),
        ("5.76E23flops", 5.76e23),
        ("3.5 ZFLOP", 3.5e21),
        ("2 YFLOPs", 2e24),
        ("3640 PF-days", 3640 * 8.64e19),  # GPT-3, table D.1 of arXiv 2005.14165: 3.14e23 FLOP
        ("3,640 PFLOP/s-days", 3640 * 8.64e19),
        ("1e6 PF days", 8.64e25),
    ],
)
def test_flop(text: str, flop: float) -> None:
    found = parse_budget(text)
    assert found.flop == pytest.approx(flop) and found.gpu_seconds == 0.0


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2000 GPU-days", 2000),
        ("2,000 gpu days", 2000),
        ("10 gpud", 10),
        ("48000 GPU-hours", 2000),
        ("48e3 GPU-h", 2000),
    ],
)
def test_gpu_time(text: str, days: float) -> None:
    assert parse_budget(text) == Budget(gpu_seconds=days * 86400.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1e24",
        "abc",
        "1e400",
        "nan",
        "inf",
        "1e24 bananas",
        "GPU-days",
        "1e24 GPU-years",
        ".",
        "1e40",
        "1e24 1e24",
    ]
    + ["0 GPU-days", "1e-3 GPU-days", "1e30 GPU-days", "9" * 500, "1e24%", "\uff11e24"],
)
def test_what_is_no_budget_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        parse_budget(text)
    assert caught.value.problems[0].remedy and len(str(caught.value)) < 400


def test_a_small_bare_number_may_be_days_or_flop() -> None:
    with pytest.raises(ToolkitError, match="unit is missing") as caught:
        parse_budget("1000")
    assert "1000 GPU-days" in caught.value.problems[0].remedy


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_budget(text)
    except ToolkitError as error:
        assert error.problems[0].remedy
    else:
        assert (found.flop > 0) != (found.gpu_seconds > 0)
