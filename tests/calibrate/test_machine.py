"""Fits of one machine's times: synthetic times of known coefficients give these coefficients back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.calibrate.machine import collective_lines, line, matmul_line, measured_calibration, traffic_rate
from toolkit.calibrate.writing import text
from toolkit.registry.calibrations import load_calibration

SIDES = (256, 512, 1024, 2048, 4096, 8192)


def products(rate: float, launch: float, bandwidth: float, noise: float = 0.0) -> list[dict[str, float]]:
    random = np.random.default_rng(1)
    rows = []
    for side in SIDES:
        flop, moved = 2.0 * side**3, 6.0 * side**2
        taken = (flop / rate + moved / bandwidth + launch) * float(1.0 + noise * random.standard_normal())
        rows.append({"side": side, "flop": flop, "moved_bytes": moved, "seconds": taken})
    return [*rows, rows[-1] | {"seconds": flop / (0.9 * rate), "sustained": 1.0}]


@given(st.floats(1e10, 1e15), st.floats(1e-6, 1e-4))
def test_rate_and_start_of_products_come_back(rate: float, launch: float) -> None:
    found = matmul_line(products(rate, launch, 2e12), 2e12)
    assert found["sustained_flop_per_second"] == pytest.approx(0.9 * rate)
    # a weight is found where some product is long enough, or short enough, to show it
    longest, shortest = 2.0 * SIDES[-1] ** 3 / rate, 2.0 * SIDES[0] ** 3 / rate
    if longest > 0.1 * launch and longest > 2e-4:
        assert found["flop_per_second"] == pytest.approx(rate, rel=0.02)
    if shortest < 10.0 * launch and longest > 2e-4:
        assert found["launch_seconds"] == pytest.approx(launch, rel=0.05)


def test_noise_of_five_percent_and_one_disturbed_time_leave_the_line_where_it_is() -> None:
    rows = products(6e14, 5e-6, 2.5e12, noise=0.05)
    rows[3] |= {"seconds": 5.0 * rows[3]["seconds"]}  # something else ran
    found = matmul_line(rows, 2.5e12)
    assert found["flop_per_second"] == pytest.approx(6e14, rel=0.15)
    assert found["launch_seconds"] == pytest.approx(5e-6, rel=0.25)
    assert found["median_error"] < 0.1


def test_no_weight_is_below_zero() -> None:
    # seconds that fall below their proportion: an unbounded fit would start them at a negative time
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    found = line([sizes, [1.0] * 4], sizes - 0.5)
    assert min(found.weights) >= 0.0
    assert found.weights[1] == 0.0


def test_latency_and_bandwidth_of_each_collective_come_back() -> None:
    rows = [
        {
            "operation": name,
            "ranks": 8,
            "bytes": 2**k,
            "sent_bytes": share * 2**k,
            "seconds": 2e-5 + share * 2**k / rate,
        }
        for name, share, rate in (("all_reduce", 1.75, 3e11), ("all_gather", 0.875, 2e11))
        for k in range(12, 31, 2)
    ]
    found = {row["operation"]: row for row in collective_lines(rows)}
    assert found["all_reduce"]["bytes_per_second"] == pytest.approx(3e11, rel=1e-3)
    assert found["all_gather"]["bytes_per_second"] == pytest.approx(2e11, rel=1e-3)
    assert found["all_gather"]["latency_seconds"] == pytest.approx(2e-5, rel=1e-3)
    assert collective_lines([]) == []


def test_traffic_is_all_bytes_over_all_seconds() -> None:
    assert traffic_rate([{"moved_bytes": 2e9, "seconds": 1.0}, {"moved_bytes": 3e9, "seconds": 4.0}]) == 1e9


def test_what_lies_in_its_range_is_taken_over_and_the_file_says_so(tmp_path: Path) -> None:
    stated = load_calibration()
    source = "measured on a bench by toolkit profile, 2026-01-01"
    measured = {"memory_fraction": 0.81239, "step_overhead_seconds": 0.5, "optimizer_traffic_fused": float("nan")}
    found, refused = measured_calibration(stated, measured, "bench", source)
    path = tmp_path / "bench.toml"
    path.write_text(text(found))
    read = load_calibration(str(path))
    assert (read["memory_fraction"], read.coefficients["memory_fraction"].status) == (0.8124, "measured")
    assert read.coefficients["memory_fraction"].source == source
    changed = [name for name in stated.coefficients if read.coefficients[name] != stated.coefficients[name]]
    assert changed == ["memory_fraction"]
    assert "step_overhead_seconds would be 0.5, outside its plausible range of 0.002 to 0.2" in refused[0]
    assert "it stays 0.02 (assumed)" in refused[0] and "optimizer_traffic_fused" in refused[1]
    assert "1 measured on your machine" not in stated.note and "1 were measured on your machine" in read.note
