"""Why weights differ where gradients do not: the norm that clips them, the learning rate, or the update itself."""

from __future__ import annotations

import re

from toolkit.plan import Plan
from toolkit.verify.parity.evidence import Evidence, listed
from toolkit.verify.parity.replay import explain
from toolkit.verify.parity.start import Refused
from toolkit.verify.parity.traces import Run

PRINTED = 1.0e-5  # relative: of numbers that are printed with six digits


def norm_alone(seen: Evidence) -> str:
    """The norm is not that of these gradients."""
    if not seen.fails("gradient_norm") or seen.fails("gradients"):
        return ""
    factor = seen.of("gradient_norm")[0].factor
    if factor < 1.0:
        return (
            f"the gradient norm is {factor:.4g} of what the same gradients have: it is the local norm of one rank's"
            " share and not summed over the ranks; clipping follows it, by another factor on each rank"
        )
    return (
        f"the gradient norm is {factor:.4g} of what the same gradients have: shards that several ranks hold are counted"
        " more than once, or some are left out; clipping follows it"
    )


def update_alone(seen: Evidence) -> str:
    """Gradients agree, weights after the step do not."""
    if not seen.fails("weights") or seen.fails("gradients"):
        return ""
    rates = [run.record(seen.step).learning_rate for run in (seen.one, seen.other)]
    if rates[0] != rates[1]:
        each = max(seen.strategy.dp, seen.strategy.gradient_accumulation_steps)
        behind = [(step, 1 + (step - 1) * each) for step in range(2, seen.one.steps + 1)]
        known = [(step, at) for step, at in behind if at <= seen.one.steps]
        if known and all(
            seen.other.record(step).learning_rate == seen.one.record(at).learning_rate for step, at in known
        ):
            return (
                f"gradients agree, the learning rate does not: {rates[1]:g} where the contract has {rates[0]:g},"
                f" which is that of {each} times the step: the scheduler steps once for each rank or micro-batch"
            )
        return (
            f"gradients agree, the learning rate does not: {rates[1]:g} where the contract has {rates[0]:g}; the"
            " schedule counts other steps, or was scaled by the number of ranks"
        )
    names = [row.name for row in seen.of("weights")]
    said = explain(seen.plan, seen.other, names, seen.step) if not seen.other.first else ""
    if said:
        return f"gradients agree, the update does not ({listed(names)}): {said}"
    return (
        f"gradients agree, the update does not ({listed(names)}): another learning rate, decay, epsilon or step count"
        " in the optimizer, or a shard of it that is not gathered"
    )


def said_by_the_program(refusal: Refused, plan: Plan, one: Run) -> str:
    """The likely cause where the program itself refused a step's learning rate, from what it said of it.

    Raises nothing: a sentence that holds no two rates is passed on as it is.
    """
    rates = re.search(r"learning rate ([^\s,]+), .* has ([^\s,]+) there", refusal.said)
    if rates is None:
        return refusal.said
    made, wanted = float(rates[1]), float(rates[2])
    each = max(plan.strategy.dp, plan.strategy.gradient_accumulation_steps)
    why = "the schedule counts other steps, or was not restored"
    at = 1 + (refusal.step - 1) * each
    if each > 1 and wanted and abs(made / wanted - each) <= PRINTED * each:
        why = f"it is {each} times as much: it was scaled by the number of ranks, or"
        why += f" is that of {each} times the step, because the scheduler steps once for each rank or micro-batch"
    elif each > 1 and wanted and abs(made * each / wanted - 1.0) <= PRINTED:
        why = f"it is 1/{each} of it: the warm-up is counted in micro-batches or over ranks, {each} times as long, or"
        why += " the rate is divided by their number"
    elif each > 1 and refusal.step > 1 and at <= one.steps:
        later = one.record(at).learning_rate
        if later is not None and abs(made - later) <= PRINTED * abs(later):
            why = f"it is that of {each} times the step: the scheduler steps once for each rank or micro-batch"
    return f"the learning rate does not agree: {refusal.said}, and the program ended there; {why}"
