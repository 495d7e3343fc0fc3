"""Why the loss is another one: in the forward pass, in its mean over tokens, or only where it is shown."""

from __future__ import annotations

import math

from toolkit.verify.parity.compare import mean_of_means, token_weighted
from toolkit.verify.parity.evidence import Evidence


def other_forward(seen: Evidence) -> str:
    """The loss itself is another one although samples and weights are the same."""
    if not seen.forward_differs:
        return ""
    axes = [axis for axis in ("tp", "pp", "cp", "ep") if getattr(seen.strategy, axis) > 1]
    hints = {
        "cp": "the slices of the sequence see the wrong keys or positions (mask, rotary positions, zigzag order)",
        "tp": "a partial sum of a row-parallel layer is not reduced, or reduced twice, or the vocabulary is padded",
        "pp": "a stage reads activations of another micro-batch, or a buffer that is overwritten",
        "ep": "tokens are dropped, or sent to other experts (capacity, precision of the router)",
    }
    said = seen.other_settings() or "; ".join(f"{axis}: {hints[axis]}" for axis in axes)
    said = said or "another attention mask, other positions, dropout, or precision"
    start = "from the same weights and samples" if seen.step == 1 else f"from step {seen.step} on"
    less = "" if seen.fails("loss") else " (by less than the bound of the loss, which gradients pass)"
    return f"the loss of the forward pass differs {start}{less}: {said}"


def normalisation(seen: Evidence) -> str:
    """The loss that the step was taken on is not the mean over all tokens, although the tokens are the same."""
    if seen.fails("loss") or not (seen.fails("logged_loss") or seen.fails("gradients")):
        return ""
    micro, logged = seen.other.micro_batches(seen.step), seen.other.record(seen.step).loss
    right, wrong = token_weighted(micro), mean_of_means(micro)
    mine = [(total, count) for total, count in seen.other.line(0, seen.step)["micro"]]
    own = token_weighted(mine)
    share = sum(total for total, _ in mine) * seen.strategy.dp / sum(count for _, count in micro) if micro else None
    row = seen.comparison.worst("logged_loss")
    if right is None or wrong is None or own is None or share is None or logged is None or row is None:
        return ""
    near = _tolerance(seen)
    counts = sorted({count for _, count in micro})
    ranks = _mean_over_ranks(seen)
    if seen.fails("gradients") and abs(ranks - right) > near and abs(logged - ranks) <= min(near, abs(logged - wrong)):
        return (
            f"each rank divides by its own tokens, and the ranks are averaged: the loss is {ranks:.4f} where all tokens"
            f" together have {right:.4f}; divide by the tokens of all ranks"
        )
    if seen.fails("gradients") and abs(wrong - right) > near and abs(logged - wrong) <= near:
        return (
            f"mean of means: micro-batches of {counts[0]} to {counts[-1]} tokens count alike, so the loss is"
            f" {wrong:.4f} where all tokens together have {right:.4f}; the gap vanishes on equal-length data;"
            " divide the sum of token losses by the tokens of the whole step, over accumulation and ranks"
        )
    if seen.fails("logged_loss") and not seen.fails("gradients"):
        if min(abs(logged - own), abs(logged - share)) <= near:
            return (
                f"the logged loss {logged:.4f} is that of rank 0 alone, the mean over all ranks is {right:.4f}:"
                " training is right, the figure is not; reduce it over the ranks before it is logged"
            )
        return f"training is right, the logged loss {logged:.4f} is not the mean per token {right:.4f}" + (
            ": it is a mean of means" if abs(logged - wrong) <= near else f": it is {logged / right:.4g} of it"
        )
    return ""


def _mean_over_ranks(seen: Evidence) -> float:
    """The mean over ranks of each one's mean per token, where they accumulate several micro-batches; else NaN."""
    found = []
    for rank in range(len(seen.other.ranks)):
        micro = [(total, count) for total, count in seen.other.line(rank, seen.step)["micro"]]
        if len(micro) > 1 and sum(count for _, count in micro):
            found.append(sum(total for total, _ in micro) / sum(count for _, count in micro))
    return sum(found) / len(found) if len(found) > 1 else math.nan


def _tolerance(seen: Evidence) -> float:
    return next(
        (row.tolerance for row in seen.comparison.rows if row.quantity == "logged_loss" and row.step == seen.step), 0.0
    )
