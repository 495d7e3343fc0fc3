"""Why gradients differ where the loss does not: a factor, a reduction, a precision, or one kind of tensor alone."""

from __future__ import annotations

import re

import numpy as np

from toolkit.verify.parity.evidence import SAME, Evidence, is_embedding, is_norm, listed
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


def balance_of_experts(seen: Evidence) -> str:
    """The routers' gradients lead, and the loss of the tokens is right."""
    rows = seen.of("gradients")
    if not rows or seen.fails("loss") or ".router." not in max(rows, key=lambda row: row.ratio).name:
        return ""
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
    if all(is_norm(name) for name in names) and seen.strategy.tp > 1:
        return (
            f"only the gradients of norms differ ({said}): with sequence parallelism each tensor-parallel rank sees a"
            " slice of the sequence, and they are not summed over the group (mark the parameters sequence_parallel)"
        )
    if all(is_embedding(name) for name in names):
        return (
            f"only the embedding's gradient differs ({said}): it is tied to the output layer and the two gradients"
            " are not summed, or it is cut or padded differently"
        )
    if all(".experts." in name or "router" in name or ".gate." in name for name in names):
        return (
            f"only the experts' gradients differ ({said}): they are reduced over the wrong group or divided by the"
            " wrong number of ranks; experts average over all data-parallel tokens, not over those of their own group"
        )
    return ""


def lost_reduction(seen: Evidence) -> str:
    """Ranks that should have one gradient have several."""
    torn = list(seen.other.disagreements("gradients", seen.step))
    if not torn or not seen.fails("gradients"):
        return ""
    names = [name for name, _ in torn]
    return (
        f"ranks {', '.join(map(str, torn[0][1]))} have different gradients of {listed(names)}: they are not reduced"
        " over these ranks before the update"
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
