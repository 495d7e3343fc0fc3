"""What an optimizer must have done: Adam run again in float64 on the traced gradients, as it should be and as mistaken.

Where gradients agree and weights do not, the update itself differs. Each usual mistake is played through, from the
traced weights at the start; the one that gives the weights that were traced is the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from toolkit.plan import Plan
from toolkit.verify.parity.compare import CLIP_GUARD
from toolkit.verify.parity.traces import Run

NEAR = 0.02  # relative to how far the weights moved: an explanation
CLEARER = 4.0  # times as near as the right update
TENSORS = 12  # replayed at most; those that fail first


@dataclass(frozen=True)
class Adam:
    """The settings that may be mistaken."""

    rate: float = 1.0  # times that of the log
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1.0e-8
    decay: float = 0.0
    decays: Callable[[np.ndarray], bool] = lambda weight: weight.ndim > 1
    coupled: bool = False  # decay added to the gradient
    corrected: bool = True  # bias correction
    remembers: bool = True  # moments of earlier steps
    clips: float = 0.0  # norm that gradients are cut to; 0: not at all
    bits: int = 0  # mantissa bits that the weights are kept in; 0: all

    def run(self, start: np.ndarray, gradients: list[np.ndarray], norms: list[float], rates: list[float]) -> np.ndarray:
        """The weights after these steps. Source: Loshchilov and Hutter 2019, algorithm 2."""
        weight = start.astype(np.float64)
        first = second = np.zeros_like(weight)
        for step, (gradient, norm, logged) in enumerate(zip(gradients, norms, rates, strict=True), start=1):
            rate, decay = logged * self.rate, self.decay if self.decays(start) else 0.0
            cut = min(1.0, self.clips / (norm + CLIP_GUARD)) if self.clips else 1.0
            seen = gradient.astype(np.float64) * cut + (decay * weight if self.coupled else 0.0)
            age = step if self.remembers else 1
            kept = self.remembers and step > 1
            first = (self.beta1 * first if kept else 0.0) + (1.0 - self.beta1) * seen
            second = (self.beta2 * second if kept else 0.0) + (1.0 - self.beta2) * seen**2
            mean = first / (1.0 - self.beta1**age) if self.corrected else first
            root = np.sqrt(second / (1.0 - self.beta2**age) if self.corrected else second)
            weight = weight * (1.0 if self.coupled else 1.0 - rate * decay) - rate * mean / (root + self.epsilon)
            if self.bits:
                weight = short(weight, self.bits)
        return weight


def short(values: np.ndarray, bits: int) -> np.ndarray:
    """Rounded to so many bits of mantissa, the leading one included: 8 of bf16, 11 of fp16."""
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent))


def is_short(values: np.ndarray, bits: int) -> bool:
    """Whether all values have no more bits than that, which values of fp32 have by chance once in 65,536."""
    values = values[values != 0.0]
    return bool(values.size) and float(np.mean(short(values, bits) == values)) > 0.99


def explain(plan: Plan, other: Run, names: list[str], step: int) -> str:
    """The mistake that gives the traced weights; empty where none of them does."""
    contract = plan.contract
    if not contract.optimizer.startswith("adamw") or not names:
        return ""
    right = Adam(
        beta1=contract.adam_beta1,
        beta2=contract.adam_beta2,
        epsilon=contract.adam_epsilon,
        decay=contract.weight_decay,
        clips=contract.gradient_clipping,
    )
    steps = range(1, step + 1)
    gradients = [other.arrays("g", each) for each in steps]
    norms = [float(np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in each.values()))) for each in gradients]
    rates = [other.record(each).learning_rate for each in steps]
    start, end = other.arrays("w", 0), other.arrays("w", step)

    def apart(adam: Adam) -> float:
        """The worst tensor's distance from what was traced, relative to how far it moved."""
        found = 0.0
        for name in names[:TENSORS]:
            made = adam.run(start[name], [each[name] for each in gradients], norms, rates)
            moved = float(np.linalg.norm(end[name].astype(np.float64) - start[name]))
            found = max(found, float(np.linalg.norm(made - end[name])) / max(moved, 1.0e-12))
        return found

    unexplained = apart(right)
    mistakes = [(apart(adam), said) for adam, said in _mistakes(plan, right)]
    near = min(distance for distance, _ in mistakes)
    if near > min(NEAR, unexplained / CLEARER):
        return ""
    return next(said for distance, said in mistakes if distance <= 2.0 * near)  # the first of those as good


def _mistakes(plan: Plan, right: Adam) -> list[tuple[Adam, str]]:
    ranks, windows = plan.strategy.dp, plan.strategy.gradient_accumulation_steps
    found = [
        (
            replace(right, decays=lambda _: True),
            "weight decay is applied to norms and biases too, which are left out of it",
        ),
        (replace(right, decay=0.0), "weight decay is not applied"),
        (
            replace(right, decays=lambda weight: weight.ndim < 2),
            "weight decay is applied to the wrong group of parameters",
        ),
        (
            replace(right, coupled=True),
            "weight decay is added to the gradient (Adam with L2), not to the weight (AdamW)",
        ),
        (replace(right, corrected=False), "the moments are not corrected for their start at 0 (bias correction)"),
        (
            replace(right, remembers=False),
            "the moments of earlier steps are lost: the optimizer starts anew in every step",
        ),
        (
            replace(right, bits=8),
            "the weights are kept in bf16 only, and small updates are lost: master weights in fp32",
        ),
        (
            replace(right, bits=11),
            "the weights are kept in fp16 only, and small updates are lost: master weights in fp32",
        ),
        (replace(right, beta2=0.999), "beta2 is 0.999, the library's default, and not that of the contract"),
        (replace(right, clips=0.0), "gradients are not clipped"),
    ]
    for number, what in ((ranks, "data-parallel ranks"), (windows, "accumulated micro-batches")):
        if number > 1:
            found += [
                (replace(right, rate=number), f"the learning rate used is {number} times the logged one ({what})"),
                (replace(right, rate=1.0 / number), f"the learning rate used is 1/{number} of the logged one ({what})"),
                (replace(right, clips=right.clips * number), f"the clipping limit is {number} times as high ({what})"),
                (
                    replace(right, clips=right.clips / number),
                    f"gradients are clipped to 1/{number} of the limit, or by a norm of sums ({what})",
                ),
                (
                    replace(right, clips=right.clips * number**0.5),
                    f"gradients are clipped by a local norm, of one rank's share of {number}, not the global one",
                ),
            ]
    return found
