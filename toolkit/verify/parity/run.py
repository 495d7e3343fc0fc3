"""One reference and several layouts: the document of ``toolkit parity``."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import Problems, ToolkitError
from toolkit.plan import Plan
from toolkit.strategy import describe
from toolkit.verify.parity.causes import find
from toolkit.verify.parity.checks import checks
from toolkit.verify.parity.compare import QUANTITIES, Comparison, compare
from toolkit.verify.parity.start import start, write
from toolkit.verify.parity.traces import Run

OPTIMIZERS = ("adamw", "adamw_unfused", "sgd")  # whose update has a bound
STEPS = 4
TIME_LIMIT = 600.0


def parity(
    reference: Plan,
    against: Mapping[str, Plan],
    steps: int = STEPS,
    limit: float = TIME_LIMIT,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    programs: Mapping[str, tuple[str, ...]] = {},
) -> dict[str, Any]:
    """Run one process and each layout, and compare them; ``folder`` keeps what they write.

    ``programs`` starts another program for a layout (or for ``reference``): tests put faults in this way. Raises
    ToolkitError for plans of different experiments and for runs that fail.
    """
    _require_one_experiment(reference, against)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        base = folder or Path(temporary)
        with Problems() as problems:  # before minutes of running are lost
            for name, plan in against.items():
                try:
                    write(plan, base / name)
                except ToolkitError as error:
                    problems.absorb(error)
        progress(f"1 process: {describe(reference.strategy)}")
        one = start(reference, base / "reference", steps, limit, programs.get("reference", ()))
        pairs = []
        for name, plan in against.items():
            progress(f"{name}: {plan.cluster.num_gpus} x {describe(plan.strategy)}")
            other = start(plan, base / name, steps, limit, programs.get(name, ()))
            pairs.append({"against": name, "strategy": describe(plan.strategy)} | pair(plan, one, other))
    contract = reference.contract
    return {
        "recipe": reference.recipe or reference.name,
        "reference": describe(reference.strategy),
        "contract": {
            "global_batch_size": contract.global_batch_size,
            "sequence_length": contract.sequence_length,
            "learning_rate": contract.learning_rate,
            "seed": contract.seed,
            "precision": contract.precision,
        },
        "pairs": pairs,
        "seconds": time.perf_counter() - started,
    }


def pair(plan: Plan, one: Run, other: Run) -> dict[str, Any]:
    """What one pair of runs shows, as plain data."""
    comparison, rules = compare(plan, one, other), checks(one, other)
    failing, broken = comparison.failing(), [check for check in rules if not check.holds]
    errors, tolerances = {}, {}
    for quantity in QUANTITIES:
        row = comparison.worst(quantity)
        if row is not None:
            errors[quantity], tolerances[quantity] = _number(row.error), row.tolerance
    found = {
        "workers": len(other.ranks),
        "steps": comparison.steps,
        "max_abs_error": errors,
        "tolerance": tolerances,
        "verdict": "fail" if failing or broken or comparison.only_in_one else "pass",
        "cause": find(comparison, rules, plan.strategy, one, other),
        "checks": {check.name: check.problem or "ok" for check in rules},
        "closest": _closest(comparison),
    }
    if failing:
        row = failing[0]
        where = {"step": row.step, "quantity": row.quantity, "parameter": row.name}
        found["where"] = where | {"error": _number(row.error), "tolerance": row.tolerance}
    elif broken:
        found["where"] = {"step": broken[0].step, "quantity": broken[0].name, "parameter": ""}
    return found


def _closest(comparison: Comparison) -> float:
    """The largest error over its tolerance: how near the pair is to failing."""
    return _number(max((row.ratio for row in comparison.rows), default=0.0))


def _number(value: float) -> float:
    return value if math.isfinite(value) else 1.0e308  # JSON has no infinity


def _require_one_experiment(reference: Plan, against: Mapping[str, Plan]) -> None:
    with Problems() as problems:
        for name, plan in against.items():
            different = [
                key
                for key in plan.contract.__struct_fields__
                if getattr(plan.contract, key) != getattr(reference.contract, key)
            ]
            if different or plan.program != reference.program:
                problems.add(
                    f"{name} is another experiment than the reference: {', '.join(different) or 'another program'}",
                    "compare plans of one contract",
                )
        if reference.contract.precision != "fp32":
            problems.add(f"the contract's precision is {reference.contract.precision}", "bounds are for fp32")
        if reference.contract.optimizer not in OPTIMIZERS:
            problems.add(
                f"no bound is known for an update of {reference.contract.optimizer}",
                f"compare with --optimizer {' or '.join(OPTIMIZERS)}",
            )
    if not against:
        raise ToolkitError("there is nothing to compare with", remedy="name layouts: --against tp2,pp2,zero1")
