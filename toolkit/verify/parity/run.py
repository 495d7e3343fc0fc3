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
from toolkit.verify.parity.causes_update import said_by_the_program
from toolkit.verify.parity.checks import checks
from toolkit.verify.parity.compare import QUANTITIES, Comparison, compare
from toolkit.verify.parity.start import Refused, start, write
from toolkit.verify.parity.traces import Run

OPTIMIZERS = ("adamw", "adamw_unfused", "sgd")  # whose update has a bound
UNBOUNDED = {
    **dict.fromkeys(
        ("adamw_8bit", "adamw_8bit_paged"),
        "its moments are rounded to 8 bits in blocks that each layout cuts elsewhere, so no rounding bound holds",
    ),
    "adamw_paged": "it is AdamW in kernels of bitsandbytes that need a GPU, and learns what adamw learns",
    "muon": "its update is an orthogonal factor found by iteration, whose change with rounding grows with the condition"
    " number of each gradient, which has no bound that is known beforehand",
}
STEPS = 4
TIME_LIMIT = 600.0


Experiments = list[tuple[Plan, dict[str, Plan]]]


def several(
    experiments: Experiments,
    steps: int = STEPS,
    limit: float = TIME_LIMIT,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """:func:`parity` of each experiment, as one document: that of the first, with the pairs of all."""
    for reference, against in experiments:  # before minutes of running are lost
        _require_one_experiment(reference, against)
    found = [
        parity(reference, against, steps, limit, _sub(folder, number), progress)
        for number, (reference, against) in enumerate(experiments)
    ]
    pairs = [pair for each in found for pair in each["pairs"]]
    return found[0] | {"pairs": pairs, "seconds": sum(each["seconds"] for each in found)}


def _sub(folder: Path | None, number: int) -> Path | None:
    return folder if folder is None or not number else folder / f"experiment-{number + 1}"


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
            since = time.perf_counter()
            try:
                other = start(plan, base / name, steps, limit, programs.get(name, ()))
            except Refused as refusal:  # what was looked for is found, by the program itself
                found = _named(name, plan, reference) | refused(plan, one, refusal)
                pairs.append(found | {"seconds": time.perf_counter() - since})
                continue
            found = _named(name, plan, reference) | pair(plan, one, other)
            if one.ranks[0]["batch_norms"] and plan.program == "finetune" and plan.strategy.dp > 1:
                progress(f"{name}, with SyncBatchNorm")
                again = start(plan, base / f"{name}-sync", steps, limit, programs.get(name, ()), ("--sync-batch-norm",))
                found["again"] = {"with": "SyncBatchNorm"} | pair(plan, one, again)
                found["cause"] += _said_again(found["again"])
            pairs.append(found | {"seconds": time.perf_counter() - since})
    contract = reference.contract
    return {
        "recipe": reference.recipe or reference.name,
        "program": reference.program,
        "reference": describe(reference.strategy),
        "steps": steps,
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


def _named(name: str, plan: Plan, reference: Plan) -> dict[str, Any]:
    contract = plan.contract
    return {
        "against": name,
        "strategy": describe(plan.strategy),
        "reference": describe(reference.strategy),
        "model": plan.model.name,
        "method": contract.method,
    }


def _said_again(again: dict[str, Any]) -> str:
    if again["verdict"] == "pass":
        return "; run again with SyncBatchNorm, it passes"
    return f"; run again with SyncBatchNorm, it fails too: {again['cause']}"


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
        "cause": find(comparison, rules, plan, one, other),
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


def refused(plan: Plan, one: Run, refusal: Refused) -> dict[str, Any]:
    """:func:`pair` of a layout whose program ended by itself, at a step that is not the contract's."""
    return {
        "workers": plan.cluster.num_gpus,
        "steps": refusal.step - 1,
        "max_abs_error": {},
        "tolerance": {},
        "verdict": "fail",
        "cause": said_by_the_program(refusal, plan, one),
        "checks": {refusal.quantity: refusal.said},
        "closest": _number(math.inf),
        "where": {"step": refusal.step, "quantity": refusal.quantity, "parameter": ""},
    }


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
        optimizer = reference.contract.optimizer
        if optimizer not in OPTIMIZERS:
            problems.add(
                f"no bound is known for an update of {optimizer}: {UNBOUNDED.get(optimizer, 'not derived')}",
                f"compare with --optimizer {' or '.join(OPTIMIZERS)}: gradients are the same whatever applies them",
            )
    if not against:
        raise ToolkitError("there is nothing to compare with", remedy="name layouts: --against tp2,pp2,zero1")
