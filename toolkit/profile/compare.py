"""Predictions beside measurements, and the coefficients that the measurements give: pure, from reports to documents."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.calibrate.machine import collective_lines, matmul_line, measured_calibration, traffic_rate
from toolkit.calibration import Calibration
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.matmul import achievable, peak_flop_per_second
from toolkit.plan import Plan
from toolkit.registry.efficiency import matmul_curve
from toolkit.strategy import describe

ON_CPU = (
    "measured on processors: throughput, memory and calibration are this machine's without a GPU, and say nothing"
    " about any GPU"
)
CURVES = (
    "rates of matrix products and collectives are told, not written: the calibration has no coefficient for them;"
    " put them into your own accelerator's or cluster's file"
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
    sustained_matmul_fraction     FLOP/s of one large product for seconds, over what the matmul curve says is reached
    step_overhead_seconds         a step without forward, backward and update
    optimizer_traffic_*           seconds of the update over those that one read and write of each state would take
    fragmentation_fraction        GPU: reserved beyond allocated bytes, over activations at the peak
    ============================  ====================================================================================

    Left out: what one device cannot show (hidden fractions, expert coefficients), and the host's time per layer.
    """
    accelerator, apart, memory = plan.cluster.accelerator, run["apart"], run["memory"]
    precision = kernel_precision(plan)
    bandwidth = traffic_rate(kernels["traffic"])
    products = matmul_line(kernels["matmul"], bandwidth)
    reachable = achievable(accelerator, precision) * matmul_curve(accelerator).clock_fraction
    measured = {
        "memory_fraction": bandwidth / accelerator.memory_bandwidth_bytes_per_second,
        "sustained_matmul_fraction": products["sustained_flop_per_second"] / reachable,
        "step_overhead_seconds": apart["step_seconds"] - apart["passes_seconds"] - apart["update_seconds"],
    }
    held = sum(memory[name] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"))
    if memory.get("reserved_bytes") and memory["peak_bytes"] > held:
        measured["fragmentation_fraction"] = (memory["reserved_bytes"] - memory["peak_bytes"]) / (
            memory["peak_bytes"] - held
        )
    name, source = f"profile-{plan.name}", f"measured on {run['device']} by toolkit profile, {date}"
    first, refused = measured_calibration(stated, measured, name, source)
    predicted = evaluate(plan.model, plan.cluster, plan.workload, plan.strategy, first).step.optimizer_seconds
    if predicted <= 0.0 or plan.strategy.offload:
        return first, refused
    traffic = "optimizer_traffic_fused" if plan.strategy.framework == "megatron" else "optimizer_traffic_eager"
    update = {traffic: stated[traffic] * apart["update_seconds"] / predicted}
    found, more = measured_calibration(stated, measured | update, name, source)
    return found, more


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
    again = evaluate(plan.model, plan.cluster, plan.workload, plan.strategy, fitted)
    apart, step = run["apart"], plan.step
    rest = apart["step_seconds"] - apart["passes_seconds"] - apart["update_seconds"]
    parts = [
        ("forward and backward", step.compute_seconds + step.recompute_seconds, apart["passes_seconds"]),
        ("update", step.optimizer_seconds + step.offload_seconds, apart["update_seconds"]),
        ("the rest", step.overhead_seconds, rest),
    ]
    bandwidth = traffic_rate(kernels["traffic"])
    accelerator, precision = plan.cluster.accelerator, kernel_precision(plan)
    peak = peak_flop_per_second(accelerator, precision)
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
            "predicted_seconds": step.seconds,
            "measured_seconds": seconds,
            "fastest_seconds": min(each["seconds"] for each in run["steps"]),
            "slowest_seconds": max(each["seconds"] for each in run["steps"]),
            "calibrated_seconds": again.step.seconds,
            "parts": [{"name": n, "predicted_seconds": p, "measured_seconds": m} for n, p, m in parts],
        },
        "data_loading_share": sum(each["data_seconds"] for each in run["steps"])
        / sum(each["seconds"] for each in run["steps"]),
        "memory": memory_rows(plan, run["memory"]),
        "gradients_at_update_bytes": run["memory"]["gradients_at_update_bytes"],
        "kernels": {
            "precision": precision,
            "memory_bytes_per_second": bandwidth,
            "matmul": [row | {"fraction_of_peak": row["flop"] / row["seconds"] / peak} for row in kernels["matmul"]],
            "matmul_line": matmul_line(kernels["matmul"], bandwidth),
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
            "as_before": len(fitted.coefficients) - len(changed),
            "not_taken_over": list(refused),
        },
        "notes": [*([ON_CPU] if run["kind"] == "cpu" else []), *_beyond(plan, kernels["matmul"], peak), CURVES],
    }


def _beyond(plan: Plan, rows: Sequence[Mapping[str, float]], peak: float) -> list[str]:
    """No product is faster than the peak: where one is, the peak is wrong, or the device another one."""
    best = max(row["flop"] / row["seconds"] for row in rows)
    if best <= peak:
        return []
    return [
        f"a product ran at {best / 1e12:.3g} TFLOP/s, and the peak of {plan.cluster.accelerator.name} is given as"
        f" {peak / 1e12:.3g}: that figure is wrong for this machine, and every predicted time too long with it"
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
