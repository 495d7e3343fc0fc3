"""Node lists against what scontrol show hostnames prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.check.nodelist import hostnames
from toolkit.errors import ToolkitError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-4,7],m3", ["n1", "n2", "n3", "n4", "n7", "m3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu-[1,3]-a,x", ["gpu-1-a", "gpu-3-a", "x"]),
    ],
)
def test_the_forms(text: str, hosts: list[str]) -> None:
    assert hostnames(text) == hosts


@pytest.mark.parametrize("text", ["n[1-4", "n1]", "n[4-1]", "n[a-b]", "n1,,n2", "n[[1]]", "", "n[1-99999999]"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ToolkitError):
        hostnames(text)


@given(st.integers(0, 500), st.integers(0, 60), st.integers(1, 4))
def test_a_range_is_its_numbers(low: int, more: int, width: int) -> None:
    text = f"n[{low:0{width}d}-{low + more:0{width}d}]"
    found = hostnames(text)
    assert len(found) == more + 1
    assert [int(host[1:]) for host in found] == list(range(low, low + more + 1))
