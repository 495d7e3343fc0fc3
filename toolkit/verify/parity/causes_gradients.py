"""Why gradients differ where the loss does not: a factor, a reduction, a precision, or one kind of tensor alone."""

from __future__ import annotations

import re

import numpy as np

from toolkit.verify.parity.evidence import (
    SAME,
    Evidence,
    is_bias,
    is_embedding,
    is_expert,
    is_norm,
    is_router,
    listed,
)
from toolkit.verify.parity.replay import is_short


def short_gradients(seen: Evidence) -> str:
    """Gradients of the other run that are numbers of 16 bits."""
    names = [row.name for row in seen.of("gradients")]
    mine, theirs = seen.one.arrays("g", seen.step), seen.other.arrays("g", seen.step)
    for bits, kind in ((8, "bf16"), (11, "fp16")):
        if names and all(is_short(theirs[name], bits) and not is_short(mine[name], bits) for name in names):
            return f"the gradients are reduced or accumulated in {kind} ({listed(names)}): do it in fp32"
    return ""


def common_factor(seen: Evidence) -> str:
    """All gradients are the right ones times one number."""
    rows = seen.of("gradients")
    everything = [row for row in seen.comparison.rows if row.quantity == "gradients" and row.step == seen.step]
    if not rows or len(rows) < 0.9 * len(everything) or any(row.residual > SAME for row in rows):
        return ""
    factors = np.array([row.factor for row in rows])
    factor = float(np.median(factors))
    if np.abs(factors / factor - 1.0).max() > SAME or abs(factor - 1.0) <= SAME / 10.0:
        return ""
    strategy = seen.strategy
    tokens = sum(count for _, count in seen.other.micro_batches(seen.step))
    contract = seen.plan.contract
    for length in (contract.sequence_length, contract.sequence_length - 1):
        every = length * contract.global_batch_size
        if tokens < (1.0 - SAME) * every and abs(factor * every / max(tokens, 1) - 1.0) <= 0.002:
            return (
                f"all gradients are {factor:.4g} times what they should be, as {tokens} trained tokens are of {every}:"
                " the loss is divided by all tokens, ignored ones (padding, prompts) too"
            )
    known = {
        "data-parallel ranks": strategy.dp,
        "context-parallel ranks": strategy.cp,
        "tensor-parallel ranks": strategy.tp,
        "accumulated micro-batches": strategy.gradient_accumulation_steps,
    }
    for what, number in known.items():
        if number > 1 and abs(factor / number - 1.0) <= SAME:
            return (
                f"all gradients are {factor:.4g} times what they should be, and there are {number} {what}: they are"
                " summed where they should be averaged"
            )
        if number > 1 and abs(factor * number - 1.0) <= SAME:
            return (
                f"all gradients are 1/{number} of what they should be, and there are {number} {what}: they are divided"
                " twice, or a sum over them is missing"
            )
    return f"all gradients are {factor:.4g} times what they should be: the loss is scaled by that, or divided by less"


def left_over(seen: Evidence) -> str:
    """What is too much are the gradients of the step before."""
    before = seen.step - 1
    if not seen.fails("gradients") or before <= max(seen.one.first, seen.other.first):
        return ""
    mine, theirs = seen.one.arrays("g", seen.step), seen.other.arrays("g", seen.step)
    earlier, shares = seen.other.arrays("g", before), []
    for row in seen.of("gradients"):
        more = theirs[row.name].astype(np.float64) - mine[row.name]
        old = earlier[row.name].astype(np.float64)
        share = float(np.sum(more * old)) / max(float(np.sum(old * old)), 1.0e-300)
        if float(np.linalg.norm(more - share * old)) > SAME * float(np.linalg.norm(more)):
            return ""
        shares.append(share)
    if min(shares) <= 0.0 or max(shares) - min(shares) > SAME * max(shares):
        return ""
    clipped = "" if abs(shares[0] - 1.0) <= SAME else f", {shares[0]:.3g} of them as clipping left them"
    return (
        f"the gradients hold those of the step before{clipped}: they are not zeroed after the update, or one that"
        " skips an update keeps them"
    )


def cut_early(seen: Evidence) -> str:
    """The whole gradient has just the length that clipping leaves, and no common factor."""
    limit = seen.plan.contract.gradient_clipping
    if not limit or not seen.fails("gradients"):
        return ""
    mine, theirs = (
        float(np.sqrt(sum(np.sum(each.astype(np.float64) ** 2) for each in run.arrays("g", seen.step).values())))
        for run in (seen.one, seen.other)
    )
    if mine <= (1.0 + SAME) * limit or abs(theirs - limit) > 0.001 * limit:
        return ""
    return (
        f"gradients are clipped before they are complete: their norm is the limit, {limit:g}, where it should be"
        f" {mine:.4g} before clipping; clip once for each step, after accumulation and reduction"
    )


def part_of_the_batch(seen: Evidence) -> str:
    """All gradients differ by no common factor, and all ranks have the same ones."""
    rows = seen.of("gradients")
    everything = [row for row in seen.comparison.rows if row.quantity == "gradients" and row.step == seen.step]
    if not rows or len(rows) < 0.9 * len(everything) or np.median([row.residual for row in rows]) < 5.0 * SAME:
        return ""
    mine, theirs = seen.one.arrays("g", seen.step), seen.other.arrays("g", seen.step)
    along = sum(float(np.sum(mine[row.name].astype(np.float64) * theirs[row.name])) for row in rows)
    share = along / sum(float(np.sum(mine[row.name].astype(np.float64) ** 2)) for row in rows)
    windows, ranks = seen.strategy.gradient_accumulation_steps, seen.strategy.dp
    if windows > 1 and abs(share * windows - 1.0) < 0.4:
        return (
            f"all gradients differ by no common factor, and are about as large as those of one micro-batch of {windows}"
            f" ({share:.2g} along those of all): others are overwritten, or zeroed inside of the window of accumulation"
        )
    if ranks > 1:
        return (
            f"all gradients differ by no common factor although all ranks agree ({share:.2g} along those of all): one"
            " rank's gradients are in the place of the mean over ranks (sent, not reduced), or ranks are weighed"
            " unequally"
        )
    return ""


def balance_of_experts(seen: Evidence) -> str:
    """The routers' gradients lead, those before them follow, and the loss of the tokens is right."""
    rows = seen.of("gradients")
    if not rows or not is_router(max(rows, key=lambda row: row.ratio).name):
        return ""
    if all(is_router(row.name) for row in rows):
        return ""  # what balances experts would reach the layers before them too
    if seen.plan.contract.expert_balance == "sequence":
        return (
            "the routers' gradients differ and the loss per token does not: the loss that balances the load of experts"
            " over each sequence is counted for each micro-batch or rank and not divided by their number, or is scaled"
            " otherwise than the loss"
        )
    return (
        "the routers' gradients differ and the loss per token does not: the loss that balances the load of experts is a"
        " product of two means over a micro-batch, so it changes with the micro-batch and with the ranks that share"
        " one; keep micro-batches of one size, or balance over each sequence (seq_aux_loss)"
    )


def one_kind(seen: Evidence) -> str:
    """One kind of tensor alone."""
    rows = seen.of("gradients")
    names = [row.name for row in rows]
    if not names:
        return ""
    said = listed(names)
    slices = "each tensor-parallel rank sees a slice of the sequence, and they are not summed over the group"
    marked = "mark the parameters sequence_parallel"
    factors = [row.factor for row in rows]
    alike = max(row.residual for row in rows) <= SAME and max(factors) - min(factors) <= SAME * max(factors)
    times = f", {factors[0]:.3g} of what they should be" if alike else ""
    if all(is_norm(name) or is_bias(name) for name in names) and seen.strategy.tp > 1:
        kind = "norms" if all(is_norm(name) for name in names) else "norms and biases"
        return f"only the gradients of {kind} differ ({said}): with sequence parallelism {slices} ({marked})"
    if all(is_embedding(name) for name in names):
        if alike and factors[0] > 1.0:
            return (
                f"only the embedding's gradient differs ({said}{times}): it is tied to the output layer, and the two"
                " gradients are summed twice"
            )
        return (
            f"only the embedding's gradient differs ({said}): it is tied to the output layer and the two gradients"
            " are not summed, or it is cut or padded differently"
        )
    if all(is_router(name) for name in names) and seen.strategy.sequence_parallel:
        return f"only the gradients of routers differ ({said}): with sequence parallelism {slices} ({marked})"
    if all(is_expert(name) or is_router(name) for name in names):
        return (
            f"only the experts' gradients differ ({said}{times}): they are reduced over the wrong group or divided by"
            " the wrong number of ranks; experts average over all data-parallel tokens, not over those of their own"
            " group"
        )
    return ""


def lost_reduction(seen: Evidence) -> str:
    """Ranks that should have one gradient have several."""
    torn = list(seen.other.disagreements("gradients", seen.step))
    if not torn or not seen.fails("gradients"):
        return ""
    names = [name for name, _ in torn]
    axes = sorted(set().union(*(seen.other.axes(ranks) for _, ranks in torn)))
    return (
        f"ranks {', '.join(map(str, torn[0][1]))} have different gradients of {listed(names)}: they are not reduced"
        f" over {', '.join(axes)} before the update"
    )


def other_backward(seen: Evidence) -> str:
    """Whatever else differs on the way back: where."""
    names = [row.name for row in seen.of("gradients")]
    layers = sorted({int(found[1]) for name in names if (found := re.search(r"layers?\.(\d+)\.", name))})
    if not names:
        return ""
    where = f"layers {layers[0]} to {layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}" if layers else "no layer"
    return (
        f"the backward pass differs in {len(names)} gradients, of {where} ({listed(names)}), and the forward pass"
        " does not: a gradient is not reduced, or reduced twice, on the way back"
    )
