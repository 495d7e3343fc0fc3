"""Predictions beside measurements, and the coefficients that the measurements give: pure, from reports to documents."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from toolkit.calibrate.machine import collective_lines, link_line, matmul_line, measured_calibration, traffic_rate
from toolkit.calibrate.measured import on_measured
from toolkit.calibration import Calibration, Machine
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.matmul import peak_flop_per_second
from toolkit.estimate.precision import pure
from toolkit.estimates import Estimate, StepEstimate
from toolkit.plan import Plan
from toolkit.registry.efficiency import matmul_curve
from toolkit.strategy import describe

ON_CPU = (
    "measured on processors: throughput, memory and calibration are this machine's without a GPU, and say nothing"
    " about any GPU"
)

AUTOCAST = (
    "16-bit copies of weights, which autocast makes in each step, are predicted as parameters and measured as other"
    " bytes of the peak"
)


def kernel_precision(plan: Plan) -> str:
    """What the kernel benchmark runs in: 16 bits for fp8, whose casts are no single kernel."""
    return "bf16" if plan.workload.precision == "fp8" else plan.workload.precision


def calibrate(
    plan: Plan, stated: Calibration, run: Mapping[str, Any], kernels: Mapping[str, Any], date: str
) -> tuple[Calibration, tuple[str, ...]]:
    """The stated calibration with what this run and these kernels measured; and what was measured and not taken over.

    ============================  ====================================================================================
    memory_fraction               bytes/s of copy and addition over the data sheet's
    sustained_matmul_fraction     FLOP/s of one large product for seconds over those of the line through all sizes
    step_overhead_seconds         a step without forward, backward and update
    optimizer_traffic_*           seconds of the update over those that one read and write of each state would take
    fragmentation_fraction        GPU: reserved beyond allocated bytes, over activations at the peak
    machine                       the line of matrix products, memory where the data sheet is plainly another one's,
                                  and the line of collectives (:mod:`toolkit.calibrate.measured` puts them in place)
    ============================  ====================================================================================

    Left out: what one device cannot show (hidden fractions, expert coefficients), and the host's time per layer.
    """
    apart, memory = run["apart"], run["memory"]
    name, source = f"profile-{plan.name}", f"measured on {run['device']} by toolkit profile, {date}"
    machine, reached = measured_machine(plan, stated, kernels, source)
    stated = msgspec.structs.replace(stated, machine=machine)
    measured = reached | {"step_overhead_seconds": rest_seconds(apart)}
    held = sum(memory[name] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"))
    if memory.get("reserved_bytes") and memory["peak_bytes"] > held:
        measured["fragmentation_fraction"] = (memory["reserved_bytes"] - memory["peak_bytes"]) / (
            memory["peak_bytes"] - held
        )
    first, refused = measured_calibration(stated, measured, name, source)
    predicted = calibrated(plan, first).step.optimizer_seconds
    if predicted <= 0.0 or plan.strategy.offload:
        return first, refused
    fused = plan.strategy.framework == "megatron" and plan.workload.kernels != "unfused"
    traffic = "optimizer_traffic_fused" if fused else "optimizer_traffic_eager"
    update = {traffic: stated[traffic] * apart["update_seconds"] / predicted}
    return measured_calibration(stated, measured | update, name, source)


def measured_machine(
    plan: Plan, stated: Calibration, kernels: Mapping[str, Any], source: str
) -> tuple[Machine, dict[str, float]]:
    """The machine that the kernels show, and the two coefficients that follow from them.

    Memory that reaches a plausible part of the data sheet is a coefficient; any other says that the sheet is another
    machine's, and what it should have said is written instead.
    """
    accelerator, precision = plan.cluster.accelerator, kernel_precision(plan)
    before = stated.machine
    if before is not None and before.accelerator != accelerator.name:
        before = None
    sheet, fraction = accelerator.memory_bandwidth_bytes_per_second, stated.coefficients["memory_fraction"]
    bandwidth = traffic_rate(kernels["traffic"])
    reached = {}
    if fraction.low <= bandwidth / sheet <= fraction.high:
        reached["memory_fraction"] = bandwidth / sheet
        written = before.memory_bytes_per_second if before else 0.0
    else:
        sheet = written = bandwidth / fraction.value
    products = matmul_line(kernels["matmul"], sheet)
    reached["sustained_matmul_fraction"] = products["sustained_fraction"] / matmul_curve(accelerator).clock_fraction
    link = link_line(kernels["collectives"])
    return Machine(
        accelerator=accelerator.name,
        source=source,
        matmul_flop_per_second=(before.matmul_flop_per_second if before else {})
        | {precision: products["flop_per_second"]},
        launch_seconds=products["launch_seconds"],
        memory_bytes_per_second=written,
        links=(before.links if before else {}) | ({plan.cluster.intra_node.name: link} if link else {}),
    ), reached


def calibrated(plan: Plan, calibration: Calibration) -> Estimate:
    """The plan's estimates with a calibration, and on the machine that it measured."""
    cluster = on_measured(plan.cluster, calibration)
    return evaluate(plan.model, cluster, plan.workload, plan.strategy, calibration)


def rest_seconds(apart: Mapping[str, float]) -> float:
    """A step without forward, backward and update."""
    return apart["step_seconds"] - apart["passes_seconds"] - apart["update_seconds"]


def step_rows(plan: Plan, again: StepEstimate, apart: Mapping[str, float]) -> list[dict[str, Any]]:
    """Seconds by part of a step: as planned, with what was measured of the machine, and of the step itself."""
    before = plan.step

    def row(name: str, of: Callable[[StepEstimate], Any], measured: float) -> dict[str, Any]:
        return {
            "name": name,
            "predicted_seconds": of(before),
            "calibrated_seconds": of(again),
            "measured_seconds": measured,
        }

    return [
        row("forward and backward", lambda s: s.compute_seconds + s.recompute_seconds, apart["passes_seconds"]),
        row("update", lambda s: s.optimizer_seconds + s.offload_seconds, apart["update_seconds"]),
        row("the rest", lambda s: s.overhead_seconds, rest_seconds(apart)),
    ]


def document(
    plan: Plan,
    stated: Calibration,
    fitted: Calibration,
    refused: tuple[str, ...],
    run: Mapping[str, Any],
    kernels: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that ``toolkit profile --json`` prints."""
    seconds = statistics.median(step["seconds"] for step in run["steps"])
    again = calibrated(plan, fitted).step
    bandwidth = traffic_rate(kernels["traffic"])
    accelerator, precision = plan.cluster.accelerator, kernel_precision(plan)
    peak = peak_flop_per_second(accelerator, precision)
    found = on_measured(plan.cluster, fitted).accelerator
    changed = [name for name, row in fitted.coefficients.items() if row != stated.coefficients[name]]
    return {
        "recipe": plan.recipe or plan.name,
        "program": plan.program,
        "strategy": describe(plan.strategy),
        "precision": plan.workload.precision,
        "device": run["device"],
        "kind": run["kind"],
        "threads": run["threads"],
        "warm_up_steps": run["warm_up_steps"],
        "steps": len(run["steps"]),
        "tokens_per_step": run["steps"][0]["tokens"],
        "tokens_per_second": run["steps"][0]["tokens"] / seconds,
        "step": {
            "predicted_seconds": plan.step.seconds,
            "measured_seconds": seconds,
            "fastest_seconds": min(each["seconds"] for each in run["steps"]),
            "slowest_seconds": max(each["seconds"] for each in run["steps"]),
            "calibrated_seconds": again.seconds,
            "parts": step_rows(plan, again, run["apart"]),
        },
        "data_loading_share": sum(each["data_seconds"] for each in run["steps"])
        / sum(each["seconds"] for each in run["steps"]),
        "memory": memory_rows(plan, run["memory"]),
        "gradients_at_update_bytes": run["memory"]["gradients_at_update_bytes"],
        "kernels": {
            "precision": precision,
            "memory_bytes_per_second": bandwidth,
            "matmul": [row | {"fraction_of_peak": row["flop"] / row["seconds"] / peak} for row in kernels["matmul"]],
            "matmul_line": matmul_line(kernels["matmul"], found.memory_bandwidth_bytes_per_second),
            "traffic": kernels["traffic"],
            "collectives": kernels["collectives"],
            "collective_lines": collective_lines(kernels["collectives"]),
        },
        "calibration": {
            "name": fitted.name,
            "measured": {
                name: {"value": fitted[name], "before": stated[name], "unit": fitted.coefficients[name].unit}
                for name in changed
            },
            "machine": msgspec.to_builtins(fitted.machine),
            "as_before": len(fitted.coefficients) - len(changed),
            "not_taken_over": list(refused),
        },
        "notes": [
            *([ON_CPU] if run["kind"] == "cpu" else []),
            *([AUTOCAST] if plan.strategy.framework == "ddp" and not pure(plan.workload, "ddp") else []),
            *_beyond(plan, kernels["matmul"], peak),
        ],
    }


def _beyond(plan: Plan, rows: Sequence[Mapping[str, float]], peak: float) -> list[str]:
    """No product is faster than the peak: where one is, the peak is wrong, or the device another one."""
    best = max(row["flop"] / row["seconds"] for row in rows)
    if best <= peak:
        return []
    return [
        f"a product ran at {best / 1e12:.3g} TFLOP/s, and the peak of {plan.cluster.accelerator.name} is given as"
        f" {peak / 1e12:.3g}: that figure is wrong for this machine; with the calibration the measured rate is used"
    ]


def memory_rows(plan: Plan, counted: Mapping[str, int]) -> list[dict[str, Any]]:
    """Bytes by component at the peak; what outlives a step is counted between steps, the rest is the difference.

    The framework's own bytes (context, communicators, fragmentation) lie outside torch's tensors: they are left out.
    16-bit copies of weights that autocast makes in each step are predicted as parameters and measured as other bytes.
    """
    predicted = plan.memory
    names = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
    held = sum(counted[name] for name in names)
    rows = [(name.removesuffix("_bytes"), getattr(predicted, name), counted[name]) for name in names]
    total = predicted.total_bytes - predicted.framework_bytes
    own = sum(getattr(predicted, name) for name in names)
    rows.append(("activations and other, peak", total - own, counted["peak_bytes"] - held))
    rows.append(("total, peak", total, counted["peak_bytes"]))
    return [{"name": name, "predicted_bytes": p, "measured_bytes": m} for name, p, m in rows]
