"""A calibration that holds a machine: plans for that machine use its rates and say so, plans for others do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from toolkit.calibrate.measured import on_measured
from toolkit.calibrate.writing import text
from toolkit.calibration import Machine, MeasuredLink
from toolkit.cli.main import group
from toolkit.estimate.matmul import achievable, peak_flop_per_second
from toolkit.registry.calibrations import load_calibration
from toolkit.registry.clusters import resolve_cluster
from toolkit.registry.efficiency import fabric_curve, matmul_curve

MACHINE = Machine(
    accelerator="cpu",
    source="measured on a slow machine by toolkit profile, 2026-01-01",
    matmul_flop_per_second={"bf16": 2e10},
    launch_seconds=3e-5,
    memory_bytes_per_second=4e9,
    links={
        "shared memory": MeasuredLink(ring_bytes_per_second=2e8, all_reduce_bytes_per_second=3e8, start_seconds=1e-3)
    },
)


def written(folder: Path, machine: Machine | None) -> str:
    path = folder / "calibration.toml"
    path.write_text(text(msgspec.structs.replace(load_calibration(), machine=machine)))
    return str(path)


def planned(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(group, ["plan", *arguments, "--top", "1", "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("recipe", ["tiny", "tiny-pretrain"])
def test_a_plan_takes_as_long_as_the_measured_machine_and_names_it(recipe: str, tmp_path: Path) -> None:
    local = ("--recipe", recipe, "--cluster", "local-cpu", "--gpus", "2", "--dp", "2", "--zero", "0")
    stated, measured = planned(*local), planned(*local, "--calibration", written(tmp_path, MACHINE))
    before, after = (found["plans"][0]["step"] for found in (stated, measured))
    assert after["compute_seconds"] > 5.0 * before["compute_seconds"]
    assert after["exposed_dp_seconds"] > before["exposed_dp_seconds"]
    assert after["optimizer_seconds"] == pytest.approx(before["optimizer_seconds"] * 58e9 / 4e9, rel=1e-3)
    assert any(MACHINE.source in sentence for sentence in measured["assumptions"])
    assert not any("matrix product efficiency" in sentence for sentence in measured["assumptions"])


def test_another_accelerator_is_not_given_the_rates(tmp_path: Path) -> None:
    asked = ("--params", "7B", "--gpus", "8", "--accelerator", "h100")
    stated, other = planned(*asked), planned(*asked, "--calibration", written(tmp_path, MACHINE))
    assert stated["plans"][0]["step"] == other["plans"][0]["step"]
    assert any("measured on cpu" in sentence and "not used for" in sentence for sentence in other["assumptions"])


def test_the_measured_rates_are_what_formulas_read() -> None:
    cluster = resolve_cluster("2", cluster="local-cpu")
    found = on_measured(cluster, msgspec.structs.replace(load_calibration(), machine=MACHINE))
    assert achievable(found.accelerator, "bf16") == 2e10
    assert peak_flop_per_second(found.accelerator, "bf16") == peak_flop_per_second(cluster.accelerator, "bf16")
    assert matmul_curve(found.accelerator).launch_seconds == 3e-5
    curve, link = fabric_curve(found.intra_node), found.intra_node
    assert link.bandwidth_bytes_per_second * curve.ring_fraction == pytest.approx(2e8)
    assert link.bandwidth_bytes_per_second * curve.all_reduce_fraction == pytest.approx(3e8)
    assert link.latency_seconds + curve.start_seconds + curve.hop_seconds == pytest.approx(1e-3)
    assert on_measured(found, msgspec.structs.replace(load_calibration(), machine=MACHINE)) == found


def test_a_peak_below_what_was_measured_is_raised_to_it() -> None:
    fast = msgspec.structs.replace(MACHINE, matmul_flop_per_second={"bf16": 4e12})
    found = on_measured(
        resolve_cluster("2", cluster="local-cpu"), msgspec.structs.replace(load_calibration(), machine=fast)
    )
    assert peak_flop_per_second(found.accelerator, "bf16") == 4e12
    assert "peak_flop_per_second" not in found.accelerator.assumed


@pytest.mark.parametrize(
    ("precision", "micro_batch", "counted_mib"),
    [("bf16", 16, 64.48), ("bf16", 4, 16.24), ("fp32", 16, 108.47)],  # live tensors, torch 2.13, megatron-core 0.16.1
)
def test_megatron_without_compiled_kernels_keeps_what_was_counted(
    precision: str, micro_batch: int, counted_mib: float
) -> None:
    shape = ("--micro-batch", str(micro_batch), "--precision", precision)
    found = planned("--recipe", "tiny-pretrain", "--cluster", "local-cpu", "--gpus", "1", *shape, "--recompute", "none")
    memory = found["plans"][0]["memory"]
    predicted = (memory["activations_bytes"] + memory["logits_bytes"]) / 2**20
    assert predicted == pytest.approx(counted_mib, rel=0.03)
