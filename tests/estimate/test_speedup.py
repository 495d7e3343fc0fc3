"""Speed-up, efficiency and knee: identities, and Amdahl's law, whose knee is known in closed form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.estimate.speedup import benefit_per_cost, scaling_efficiency, speed_up


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(0.01, 1e4))
def test_perfect_scaling_has_efficiency_one(few: int, many: int, seconds: float) -> None:
    speed = speed_up(seconds, seconds * few / many)
    assert scaling_efficiency(speed, few, many) == pytest.approx(1.0)


@pytest.mark.parametrize("serial", [1 / 16, 1 / 64, 1 / 100, 1 / 256])
def test_the_knee_of_amdahl_lies_where_the_serial_part_is_half(serial: float) -> None:
    """t = f + (1 - f)/n: benefit per cost is largest at n = (1 - f)/f, where efficiency is about one half."""
    counts = [2**power for power in range(12)]

    def merit(n: int) -> float:
        speed = speed_up(1.0, serial + (1.0 - serial) / n)
        return benefit_per_cost(scaling_efficiency(speed, 1, n), speed)

    knee = max(counts, key=merit)
    assert (1.0 - serial) / serial / 1.5 <= knee <= (1.0 - serial) / serial * 1.5
    assert scaling_efficiency(speed_up(1.0, serial + (1.0 - serial) / knee), 1, knee) == pytest.approx(0.5, abs=0.12)


@given(st.floats(0.1, 100.0), st.floats(0.1, 100.0))
def test_doubling_pays_where_it_is_1_41_times_faster(before: float, after: float) -> None:
    grows = benefit_per_cost(scaling_efficiency(speed_up(1.0, after), 1, 2), speed_up(1.0, after)) > benefit_per_cost(
        scaling_efficiency(speed_up(1.0, before), 1, 1), speed_up(1.0, before)
    )
    if abs(before / after - 2**0.5) > 1e-6:
        assert grows == (before / after > 2**0.5)
