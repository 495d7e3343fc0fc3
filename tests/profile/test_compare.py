"""From reports of known coefficients to the calibration that holds them, and to the document."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest

from tests.finetune_runs import tiny_plan
from toolkit.calibrate.measured import on_measured
from toolkit.calibrate.writing import text
from toolkit.calibration import Calibration
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.matmul import matmul_seconds
from toolkit.plan import Plan
from toolkit.profile.compare import ON_CPU, calibrate, document, memory_rows
from toolkit.profile.single import on_one_device
from toolkit.registry.accelerators import load_accelerator
from toolkit.registry.calibrations import load_calibration
from toolkit.registry.efficiency import matmul_curve
from toolkit.report.profile import lines

RATE, LAUNCH = 250e12, 5e-6  # of matrix products
RING, ALL_REDUCE, START = 200e9, 150e9, 2e-5  # of collectives
TRUE = {
    "memory_fraction": 0.8,
    "sustained_matmul_fraction": 0.92,
    "step_overhead_seconds": 0.01,
    "fragmentation_fraction": 0.1,
    "optimizer_traffic_eager": 3.0,
}


def on_a100() -> Plan:
    plan = tiny_plan(ranks=1, framework="ddp")
    cluster = msgspec.structs.replace(plan.cluster, accelerator=load_accelerator("a100-80gb"))
    return on_one_device(msgspec.structs.replace(plan, cluster=cluster), load_calibration())


def reports(plan: Plan, **memory: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a machine of the coefficients in TRUE would report."""
    accelerator = plan.cluster.accelerator
    true = load_calibration().with_values(TRUE)
    step = evaluate(plan.model, plan.cluster, plan.workload, plan.strategy, true).step
    bandwidth = TRUE["memory_fraction"] * accelerator.memory_bandwidth_bytes_per_second
    rows = []
    for n in (512, 1024, 2048, 8192):
        flop, moved = 2.0 * n**3, 6.0 * n * n
        taken = matmul_seconds(flop, RATE, moved, accelerator.memory_bandwidth_bytes_per_second, 1.0, LAUNCH)
        rows.append({"side": n, "flop": flop, "moved_bytes": moved, "seconds": taken})
    slowed = TRUE["sustained_matmul_fraction"] * matmul_curve(accelerator).clock_fraction
    sustained = rows[-1]["seconds"] + rows[-1]["flop"] / RATE * (1.0 / slowed - 1.0)
    counted = {
        "parameters_bytes": 100,
        "gradients_bytes": 0,
        "optimizer_bytes": 200,
        "peak_bytes": 1300,
        "gradients_at_update_bytes": 100,
    }
    run = {
        "device": "NVIDIA A100-SXM4-80GB",
        "kind": "cuda",
        "threads": 1,
        "warm_up_steps": 3,
        "steps": [{"seconds": s, "tokens": 2048, "data_seconds": 0.1 * s} for s in (0.1, 0.2, 0.4)],
        "apart": {
            "step_seconds": 0.11 + step.optimizer_seconds,
            "passes_seconds": 0.1,
            "update_seconds": step.optimizer_seconds,
            "data_seconds": 0.0,
        },
        "memory": counted | {"reserved_bytes": 1400} | memory,
    }
    kernels = {
        "matmul": [*rows, rows[-1] | {"seconds": sustained, "sustained": 1.0}],
        "traffic": [{"kernel": "copy", "moved_bytes": 2e9, "seconds": 2e9 / bandwidth}],
        "collectives": [
            {"operation": name, "ranks": 2, "bytes": size, "sent_bytes": sent * size, "seconds": seconds}
            for size in (2.0**10, 2.0**20, 2.0**26)
            for name, sent, seconds in (
                ("all_gather", 0.5, START + 0.5 * size / RING),
                ("all_reduce", 1.0, 2.0 * START + size / ALL_REDUCE),
            )
        ],
    }
    return run, kernels


def test_products_and_collectives_go_into_the_calibration_and_out_of_its_file() -> None:
    plan, stated = on_a100(), load_calibration()
    found, _ = calibrate(plan, stated, *reports(plan), "2026-01-01")
    machine = found.machine
    assert machine is not None
    assert machine.accelerator == plan.cluster.accelerator.name
    assert machine.matmul_flop_per_second["bf16"] == pytest.approx(RATE, rel=1e-6)
    assert machine.launch_seconds == pytest.approx(LAUNCH, rel=1e-4)
    assert machine.memory_bytes_per_second == 0.0  # the data sheet is right, memory_fraction is what was measured
    link = machine.links[plan.cluster.intra_node.name]
    assert link.ring_bytes_per_second == pytest.approx(RING, rel=1e-6)
    assert link.all_reduce_bytes_per_second == pytest.approx(ALL_REDUCE, rel=1e-6)
    assert link.start_seconds == pytest.approx(START, rel=1e-4)
    read = msgspec.convert(tomllib.loads(text(found)), Calibration)
    assert read.coefficients == found.coefficients
    assert read.machine is not None
    assert read.machine.links[plan.cluster.intra_node.name].ring_bytes_per_second == pytest.approx(RING, rel=1e-3)


def test_a_data_sheet_of_another_machine_is_replaced_so_that_the_measured_rates_come_out() -> None:
    plan, stated = on_a100(), load_calibration()
    run, kernels = reports(plan)
    slow = 0.1 * plan.cluster.accelerator.memory_bandwidth_bytes_per_second
    kernels["traffic"] = [{"kernel": "copy", "moved_bytes": slow, "seconds": 1.0}]
    found, refused = calibrate(plan, stated, run, kernels, "2026-01-01")
    assert found["memory_fraction"] == stated["memory_fraction"]
    assert not any("memory_fraction" in sentence for sentence in refused)
    accelerator = on_measured(plan.cluster, found).accelerator
    assert accelerator.memory_bandwidth_bytes_per_second * found["memory_fraction"] == pytest.approx(slow)
    assert accelerator.achievable_flop_per_second["bf16"] == found.machine.matmul_flop_per_second["bf16"]  # type: ignore[union-attr]
    twice, _ = calibrate(
        msgspec.structs.replace(plan, cluster=on_measured(plan.cluster, found)), found, run, kernels, "x"
    )
    again = on_measured(plan.cluster, twice).accelerator
    reached = again.memory_bandwidth_bytes_per_second * twice["memory_fraction"]
    assert reached == pytest.approx(slow, rel=1e-3)  # measuring again from there says the same


def test_the_coefficients_of_the_machine_come_back() -> None:
    plan, stated = on_a100(), load_calibration()
    found, refused = calibrate(plan, stated, *reports(plan), "2026-01-01")
    assert refused == ()
    for name, value in TRUE.items():
        assert found[name] == pytest.approx(value, rel=1e-3), name
        assert found.coefficients[name].status == "measured"
        assert "NVIDIA A100-SXM4-80GB by toolkit profile, 2026-01-01" in found.coefficients[name].source
    others = set(stated.coefficients) - set(TRUE)
    assert all(found.coefficients[name] == stated.coefficients[name] for name in others)


def test_a_processor_has_no_allocator_to_measure_and_the_document_says_what_it_is() -> None:
    plan, stated = on_a100(), load_calibration()
    run, kernels = reports(plan, reserved_bytes=0)
    run["kind"] = "cpu"
    found, refused = calibrate(plan, stated, run, kernels, "2026-01-01")
    assert found["fragmentation_fraction"] == stated["fragmentation_fraction"]
    shown = document(plan, stated, found, refused, run, kernels)
    assert ON_CPU in shown["notes"]
    assert ON_CPU not in document(plan, stated, found, refused, run | {"kind": "cuda"}, kernels)["notes"]


def test_the_document_has_the_median_step_and_the_share_of_loading() -> None:
    plan, stated = on_a100(), load_calibration()
    run, kernels = reports(plan)
    fitted, refused = calibrate(plan, stated, run, kernels, "2026-01-01")
    shown = document(plan, stated, fitted, refused, run, kernels)
    assert shown["step"]["measured_seconds"] == 0.2
    assert shown["tokens_per_second"] == 10_240.0
    assert shown["data_loading_share"] == pytest.approx(0.1)
    measured = on_measured(plan.cluster, fitted)
    again = evaluate(plan.model, measured, plan.workload, plan.strategy, fitted).step.seconds
    assert shown["step"]["calibrated_seconds"] == again != shown["step"]["predicted_seconds"]
    assert set(shown["calibration"]["measured"]) == set(TRUE)
    printed = "\n".join(lines(shown))
    assert "10,240 tokens/s" in printed and "data loading: 10.0% of the time" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_a_product_faster_than_the_peak_is_told() -> None:
    plan, stated = on_a100(), load_calibration()
    run, kernels = reports(plan)
    kernels["matmul"][0]["seconds"] /= 1000.0
    shown = document(plan, stated, stated, (), run, kernels)
    assert any("that figure is wrong for this machine" in note for note in shown["notes"])


def test_parts_of_memory_sum_to_the_peak_on_both_sides() -> None:
    plan = on_a100()
    *rows, total = memory_rows(plan, reports(plan)[0]["memory"])
    for side in ("predicted_bytes", "measured_bytes"):
        assert sum(row[side] for row in rows) == pytest.approx(total[side])
    assert total["predicted_bytes"] == pytest.approx(plan.memory.total_bytes - plan.memory.framework_bytes)
