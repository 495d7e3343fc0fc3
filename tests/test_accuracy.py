"""docs/accuracy.md is what the toolkit computes now, and no other tool is better on its own ground."""

from __future__ import annotations

import re

import pytest

from tests import scoreboard


@pytest.mark.slow
def test_the_page_is_what_is_computed_now() -> None:
    text = scoreboard.PAGE.read_text()
    assert scoreboard.rendered(text) == text, "run make golden"


@pytest.mark.slow
def test_no_other_tool_is_better_on_its_own_ground() -> None:
    rows = [row.split("|")[1:-1] for row in scoreboard.table().splitlines()[2:]]
    assert len(rows) == len(scoreboard.SETS) + 2
    for name, _, ours, theirs in rows:
        mine, best = (float(re.findall(r"([\d.]+)%", cell)[0]) for cell in (ours, theirs))
        assert mine > best if "right order" in name else mine < best, name
