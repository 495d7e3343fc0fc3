"""The worked example of docs/maths.md: it is what the planner computes, and its arithmetic is right on its own."""

from __future__ import annotations

import math

import pytest

from tests import worked_example
from tests.worked_example import ARITHMETIC, MATHS, TITLE

WRITTEN = MATHS.read_text().partition(TITLE)[2]
FOUND = [match.groupdict() for match in ARITHMETIC.finditer(WRITTEN)]


def test_the_document_holds_what_the_planner_computes_now() -> None:
    assert worked_example.section() == TITLE + WRITTEN, "run make golden"


def test_the_example_covers_every_subject() -> None:
    anchors = {each["anchor"][0] for each in FOUND if each["anchor"]}
    assert anchors == set("PMAFCT")
    assert len(FOUND) >= sum(len(lines) for lines in worked_example.LINES.values()) + 5


@pytest.mark.parametrize("each", FOUND, ids=lambda each: f"{each['anchor'] or 'sum'}: {each['words']}")
def test_the_arithmetic_is_right(each: dict[str, str]) -> None:
    """Evaluated as written, by Python, without the planner; inputs are rounded to six digits."""
    value = eval(_without_commas(each["left"]), {"__builtins__": {}}, {"min": min, "max": max, "sqrt": math.sqrt})
    assert value == pytest.approx(float(each["right"].replace(",", "")), rel=3e-5)


def _without_commas(text: str) -> str:
    """Thousands separators go, the comma between arguments (before a blank) stays."""
    return text.replace(", ", "\0").replace(",", "").replace("\0", ", ")
