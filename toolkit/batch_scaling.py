"""Another global batch on purpose: the rule by which learning rate, warm-up and steps follow it."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from toolkit.errors import ToolkitError
from toolkit.recipe import Contract, planned_steps, warmup_steps

LINEAR = "in proportion to the batch, for SGD (Goyal et al., arXiv:1706.02677)"
SQUARE_ROOT = (
    "with the square root of the batch, for Adam (Malladi et al., arXiv:2205.10287; betas and epsilon stay, "
    "which their derivation changes too)"
)
WARM_UP = (
    "shorter neither in steps, over which Adam averages its second moment (Ma and Yarats, arXiv:1910.04209), "
    "nor in tokens (Goyal et al., arXiv:1706.02677)"
)


class Rescaled(NamedTuple):
    """The new contract, and a sentence for each setting that follows the batch: old value, new value, source."""

    contract: Contract
    said: tuple[str, ...]


def exponent(optimizer: str) -> float:
    """How the learning rate follows the batch: 1 for SGD, 1/2 for Adam and its like; raises where no rule is known."""
    if optimizer == "sgd":
        return 1.0
    if optimizer.startswith("adam"):
        return 0.5
    raise ToolkitError(
        f"no published rule says how the learning rate of {optimizer} follows the global batch",
        remedy="write a recipe of your own with another global_batch_size and learning_rate",
    )


def rescaled(contract: Contract, global_batch_size: int) -> Rescaled:
    """The contract at another global batch, over the same tokens.

    With ``k`` = new batch / old batch and ``e`` of :func:`exponent`:

        learning rates (peak, minimum)   times k^e
        steps                            ceil(steps / k), where the contract counts steps
        warm-up                          ceil(steps x max(1, 1 / k)), as a share of all steps times max(1, k)

    Data order, tokens or epochs, the share of a final decay, weight decay, betas and epsilon stay. No rule is
    right everywhere: the best ratio of rate and batch depends on the task (Alrashed, arXiv:2412.08347). Raises
    ToolkitError where the warm-up would fill the whole run.
    """
    old, k = contract.global_batch_size, global_batch_size / contract.global_batch_size
    power = exponent(contract.optimizer)
    changes: dict[str, int | float] = {
        "global_batch_size": global_batch_size,
        "learning_rate": contract.learning_rate * k**power,
        "min_learning_rate": contract.min_learning_rate * k**power,
        "total_steps": -(-contract.total_steps * old // global_batch_size),
        "warmup_steps": contract.warmup_steps if k >= 1.0 else -(-contract.warmup_steps * old // global_batch_size),
        "warmup_fraction": contract.warmup_fraction * max(1.0, k),
    }
    if changes["warmup_fraction"] >= 1.0:
        raise _only_warm_up(contract, global_batch_size)
    new = msgspec.structs.replace(contract, **changes)
    total = planned_steps(new)
    if 0 < total <= warmup_steps(new, total):
        raise _only_warm_up(contract, global_batch_size)
    return Rescaled(new, tuple(_sentences(contract, new, LINEAR if power == 1.0 else SQUARE_ROOT)))


def _only_warm_up(contract: Contract, global_batch_size: int) -> ToolkitError:
    most = contract.global_batch_size
    if contract.warmup_fraction:
        most = math.ceil(most / contract.warmup_fraction) - 1
    elif contract.warmup_steps and planned_steps(contract):
        most = max(most, most * planned_steps(contract) // (contract.warmup_steps + 1))
    return ToolkitError(
        f"with a global batch of {global_batch_size} sequences the whole run would be warm-up",
        remedy=f"choose at most {most}, or a longer run",
    )


def _sentences(old: Contract, new: Contract, rule: str) -> list[str]:
    said = [f"global batch {old.global_batch_size} -> {new.global_batch_size} sequences: another experiment"]
    rates = f"learning rate {old.learning_rate:.6g} -> {new.learning_rate:.6g}"
    if old.min_learning_rate:
        rates += f", at the end {old.min_learning_rate:.6g} -> {new.min_learning_rate:.6g}"
    said.append(f"{rates}: {rule}")
    if old.warmup_steps:
        said.append(f"warm-up {_length(old)} -> {_length(new)}: {WARM_UP}")
    if old.warmup_fraction:
        said.append(f"warm-up {old.warmup_fraction:.6g} -> {new.warmup_fraction:.6g} of all steps: {WARM_UP}")
    if planned_steps(old):
        said.append(f"{planned_steps(old):,} -> {planned_steps(new):,} steps: the same number of tokens")
    return said


def _length(contract: Contract) -> str:
    tokens = contract.warmup_steps * contract.global_batch_size * contract.sequence_length
    return f"{contract.warmup_steps:,} steps of together {tokens:,} tokens"
