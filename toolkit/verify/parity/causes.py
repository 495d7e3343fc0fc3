"""From what differs to why: a table of rules, the first that fits names the likely cause.

Each fault leaves its own mark. A factor common to all gradients is a mean that is missing or taken twice; gradients
that are right with a norm that is wrong are a norm taken over the wrong shards; one kind of tensor alone points at the
reduction that this kind needs.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.plan import Plan
from toolkit.verify.parity.causes_gradients import (
    balance_of_experts,
    common_factor,
    cut_early,
    left_over,
    lost_reduction,
    one_kind,
    other_backward,
    part_of_the_batch,
    short_gradients,
)
from toolkit.verify.parity.causes_loss import normalisation, other_forward
from toolkit.verify.parity.causes_start import missing, other_start
from toolkit.verify.parity.causes_update import norm_alone, update_alone
from toolkit.verify.parity.checks import Check
from toolkit.verify.parity.compare import Comparison
from toolkit.verify.parity.evidence import Evidence
from toolkit.verify.parity.traces import Run

RULES: tuple[Callable[[Evidence], str], ...] = (
    other_forward,
    normalisation,
    short_gradients,
    common_factor,
    left_over,
    cut_early,
    balance_of_experts,
    one_kind,
    lost_reduction,
    part_of_the_batch,
    norm_alone,
    update_alone,
    other_backward,
)


def find(comparison: Comparison, checks: list[Check], plan: Plan, one: Run, other: Run) -> str:
    """The likely cause as a sentence; empty where the runs agree and every rule holds."""
    broken = [check for check in checks if not check.holds]
    failing = comparison.failing()
    if comparison.only_in_one:
        return missing(comparison.only_in_one, one, other)
    for name in ("batch_norm", "steps"):
        for check in broken:
            if check.name == name:
                return check.problem
    if failing and failing[0].quantity == "initial_weights":
        return other_start([row for row in failing if row.quantity == "initial_weights"], broken, one, other)
    first = min(broken, key=lambda check: check.step, default=None)
    if first is not None and (not failing or first.step <= failing[0].step or first.name == "samples"):
        return first.problem
    if failing:
        evidence = Evidence(comparison, plan, one, other, [row for row in failing if row.step == failing[0].step])
        for rule in RULES:
            said = rule(evidence)
            if said:
                return said
        return "no rule knows this pattern: look at the first failing tensor in the order of the forward pass"
    return first.problem if first is not None else ""
