"""The usual batch: made for the number of GPUs, or for all numbers of a sweep together."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.cli.contract import _default_batch


def batch(*counts: int, length: int = 4096, method: str = "full") -> int:
    said: list[str] = []
    found = _default_batch(method, length, counts, said)
    assert f"global batch {found} sequences" in said[0]
    return found


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((64,), 1024),
        ((8, 64, 512), 1024),
        ((48,), 1056),
        ((8, 16, 48), 1056),
        ((8, 1_000_000), 4096),
        ((3, 5, 7), 1050),
    ],
)
def test_about_four_million_tokens_divisible_by_every_count(counts: tuple[int, ...], expected: int) -> None:
    assert batch(*counts) == expected


@given(st.integers(1, 100_000))
def test_one_count_divides_its_batch_or_only_powers_of_two_are_missing(gpus: int) -> None:
    found = batch(gpus)
    assert found % gpus == 0 or found % (gpus // (gpus & -gpus)) == 0


@given(st.lists(st.integers(1, 200_000), min_size=2, max_size=8, unique=True), st.sampled_from(["full", "lora"]))
def test_a_sweep_never_more_than_doubles_the_usual_batch(counts: list[int], method: str) -> None:
    usual = 128 if method == "lora" else 4096 if max(counts) > 1024 else 1024
    found = batch(*counts, method=method)
    assert usual <= found < 2 * usual
    assert found % min(counts) == 0 or min(counts) > usual
    if math.lcm(*counts) <= usual:
        assert all(found % count == 0 for count in counts)
