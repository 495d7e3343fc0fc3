"""From what differs to why: a table of rules, the first that fits names the likely cause.

Each fault leaves its own mark. A factor common to all gradients is a mean that is missing or taken twice; gradients
that are right with a norm that is wrong are a norm taken over the wrong shards; one kind of tensor alone points at the
reduction that this kind needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from toolkit.plan import Plan
from toolkit.strategy import Strategy
from toolkit.verify.parity.checks import Check
from toolkit.verify.parity.compare import Comparison, Row, mean_of_means, token_weighted
from toolkit.verify.parity.replay import explain, is_short
from toolkit.verify.parity.start import Refused
from toolkit.verify.parity.traces import Run

SAME = 0.01  # relative: two factors that are one number, a residual that is none
PRINTED = 1.0e-5  # relative: of numbers that are printed with six digits


@dataclass(frozen=True)
class Evidence:
    """What the rules look at. ``bad`` are the failing rows of the step at which the first one fails."""

    comparison: Comparison
    plan: Plan
    one: Run
    other: Run
    bad: list[Row]

    @property
    def strategy(self) -> Strategy:
        """Of the several workers."""
        return self.plan.strategy

    @property
    def step(self) -> int:
        """The first step that fails."""
        return self.bad[0].step

    def of(self, quantity: str) -> list[Row]:
        """Failing rows of one quantity at that step."""
        return [row for row in self.bad if row.quantity == quantity]

    def fails(self, quantity: str) -> bool:
        """Whether this quantity fails at that step."""
        return bool(self.of(quantity))


def find(comparison: Comparison, checks: list[Check], plan: Plan, one: Run, other: Run) -> str:
    """The likely cause as a sentence; empty where the runs agree and every rule holds."""
    broken = [check for check in checks if not check.holds]
    failing = comparison.failing()
    if comparison.only_in_one:
        torn = _untied(comparison.only_in_one, one, other)
        if torn:
            return torn
        return f"only one of the runs has {', '.join(comparison.only_in_one[:3])}: they are different models"
    for name in ("batch_norm", "steps"):
        for check in broken:
            if check.name == name:
                return check.problem
    if failing and failing[0].quantity == "initial_weights":
        return _initial([row for row in failing if row.quantity == "initial_weights"], broken, one, other)
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
    elif each > 1 and refusal.step > 1 and at <= one.steps:
        later = one.record(at).learning_rate
        if later is not None and abs(made - later) <= PRINTED * abs(later):
            why = f"it is that of {each} times the step: the scheduler steps once for each rank or micro-batch"
    return f"the learning rate does not agree: {refusal.said}, and the program ended there; {why}"


def _initial(rows: list[Row], broken: list[Check], one: Run, other: Run) -> str:
    copies = next((check.problem for check in broken if check.name == "copies" and check.step == 0), "")
    names = [row.name for row in rows]
    if copies:
        return f"the ranks start from different weights (a seed that depends on the rank?): {copies}"
    mine, theirs = one.arrays("w", rows[0].step), other.arrays("w", rows[0].step)
    for bits, kind in ((8, "bf16"), (11, "fp16")):
        if all(is_short(theirs[name], bits) and not is_short(mine[name], bits) for name in names):
            return (
                f"the weights are loaded in {kind} ({_listed(names)}), those of one process in fp32: load them in fp32"
            )
    wide = [float(np.std(theirs[name]) / np.std(mine[name])) for name in names if mine[name].std() > 0.0]
    if wide and np.ptp(wide) < 0.1 and abs(wide[0] - 1.0) > 0.1:
        return (
            f"the weights are drawn {wide[0]:.3g} times as wide ({_listed(names)}): their spread comes from the width"
            " of a shard, not of the whole tensor"
        )
    return (
        f"the runs start from different weights ({_listed(names)}): another seed, or weights drawn shard by shard"
        " from each rank's own random state; draw whole tensors by name and cut them, or load a checkpoint"
    )


def _normalisation(seen: Evidence) -> str:
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


def _tolerance(seen: Evidence) -> float:
    return next(
        (row.tolerance for row in seen.comparison.rows if row.quantity == "logged_loss" and row.step == seen.step), 0.0
    )


def _common_factor(seen: Evidence) -> str:
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


def _balance(seen: Evidence) -> str:
    """The routers' gradients lead, and the loss of the tokens is right."""
    rows = seen.of("gradients")
    if not rows or seen.fails("loss") or ".router." not in max(rows, key=lambda row: row.ratio).name:
        return ""
    return (
        "the routers' gradients differ and the loss per token does not: the loss that balances the load of experts is a"
        " product of two means over a micro-batch, so it changes with the micro-batch and with the ranks that share"
        " one; keep micro-batches of one size, or balance over each sequence (seq_aux_loss)"
    )


def _kinds(seen: Evidence) -> str:
    """One kind of tensor alone."""
    rows = seen.of("gradients")
    names = [row.name for row in rows]
    if not names:
        return ""
    listed = _listed(names)
    if all(_is_norm(name) for name in names) and seen.strategy.tp > 1:
        return (
            f"only the gradients of norms differ ({listed}): with sequence parallelism each tensor-parallel rank sees a"
            " slice of the sequence, and they are not summed over the group (mark the parameters sequence_parallel)"
        )
    if all(_is_embedding(name) for name in names):
        return (
            f"only the embedding's gradient differs ({listed}): it is tied to the output layer and the two gradients"
            " are not summed, or it is cut or padded differently"
        )
    if all(".experts." in name or "router" in name or ".gate." in name for name in names):
        return (
            f"only the experts' gradients differ ({listed}): they are reduced over the wrong group or divided by the"
            " wrong number of ranks; experts average over all data-parallel tokens, not over those of their own group"
        )
    return ""


def _untied(names: tuple[str, ...], one: Run, other: Run) -> str:
    ties = [{*group} for group in one.ranks[0]["tied"]]
    for group in ties:
        if {*names} & group and group not in [{*each} for each in other.ranks[0]["tied"]]:
            return (
                f"{' and '.join(sorted(group))} are one tensor in one process and no longer tied in several: tie them"
            )
    return ""


def _short_gradients(seen: Evidence) -> str:
    """Gradients of the other run that are numbers of 16 bits."""
    names = [row.name for row in seen.of("gradients")]
    mine, theirs = seen.one.arrays("g", seen.step), seen.other.arrays("g", seen.step)
    for bits, kind in ((8, "bf16"), (11, "fp16")):
        if names and all(is_short(theirs[name], bits) and not is_short(mine[name], bits) for name in names):
            return f"the gradients are reduced or accumulated in {kind} ({_listed(names)}): do it in fp32"
    return ""


def _lost_reduction(seen: Evidence) -> str:
    """Ranks that should have one gradient have several."""
    torn = list(seen.other.disagreements("gradients", seen.step))
    if not torn or not seen.fails("gradients"):
        return ""
    names = [name for name, _ in torn]
    return (
        f"ranks {', '.join(map(str, torn[0][1]))} have different gradients of {_listed(names)}: they are not reduced"
        " over these ranks before the update"
    )


def _forward(seen: Evidence) -> str:
    """The loss itself is another one although samples and weights are the same."""
    if not seen.fails("loss"):
        return ""
    axes = [axis for axis in ("tp", "pp", "cp", "ep") if getattr(seen.strategy, axis) > 1]
    hints = {
        "cp": "the slices of the sequence see the wrong keys or positions (mask, rotary positions, zigzag order)",
        "tp": "a partial sum of a row-parallel layer is not reduced, or reduced twice, or the vocabulary is padded",
        "pp": "a stage reads activations of another micro-batch, or a buffer that is overwritten",
        "ep": "tokens are dropped or sent to other experts",
    }
    said = "; ".join(f"{axis}: {hints[axis]}" for axis in axes) or "another attention mask, dropout, or precision"
    start = "from the same weights and samples" if seen.step == 1 else f"from step {seen.step} on"
    return f"the loss of the forward pass differs {start}: {said}"


def _norm_alone(seen: Evidence) -> str:
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


def _update_alone(seen: Evidence) -> str:
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
        return f"gradients agree, the update does not ({_listed(names)}): {said}"
    return (
        f"gradients agree, the update does not ({_listed(names)}): another learning rate, decay, epsilon or step count"
        " in the optimizer, or a shard of it that is not gathered"
    )


def _stage(seen: Evidence) -> str:
    names = [row.name for row in seen.of("gradients")]
    layers = sorted({int(found[1]) for name in names if (found := re.search(r"layers?\.(\d+)\.", name))})
    if not names:
        return ""
    where = f"layers {layers[0]} to {layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}" if layers else "no layer"
    return (
        f"the backward pass differs in {len(names)} gradients, of {where} ({_listed(names)}), and the forward pass"
        " does not: a gradient is not reduced, or reduced twice, on the way back"
    )


RULES: tuple[Callable[[Evidence], str], ...] = (
    _forward,
    _normalisation,
    _short_gradients,
    _common_factor,
    _balance,
    _kinds,
    _lost_reduction,
    _norm_alone,
    _update_alone,
    _stage,
)


def _is_norm(name: str) -> bool:
    return bool(re.search(r"norm(_weight|_bias|\.weight|\.bias)$", name))


def _is_embedding(name: str) -> bool:
    return any(part in name for part in ("embed_tokens", "word_embeddings", "wte", "lm_head", "output_layer"))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
