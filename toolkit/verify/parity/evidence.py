"""What the rules that name a cause look at, and how they speak of tensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from toolkit.plan import Plan
from toolkit.strategy import Strategy
from toolkit.verify.parity.bounds import UNIT_ROUNDOFF
from toolkit.verify.parity.compare import Comparison, Row
from toolkit.verify.parity.traces import Run

SAME = 0.01  # relative: two factors that are one number, a residual that is none


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

    @property
    def forward_differs(self) -> bool:
        """Whether the loss is another one: beyond its bound, or, from the same weights, beyond what is usual.

        The bound holds for errors that add up; what they do on the average is one rounding of each token's loss, of
        which the mean over n tokens keeps 1/sqrt(n). Four times that, where gradients are beyond their own bound, says
        that it began in the forward pass.
        """
        if self.fails("loss"):
            return True
        rows = [row for row in self.comparison.rows if row.quantity == "loss" and row.step == self.step]
        if not rows or not self.fails("gradients") or self.step != max(self.one.first, self.other.first) + 1:
            return False
        total, tokens = map(sum, zip(*self.one.micro_batches(self.step), strict=True))
        return rows[0].error > 4.0 * UNIT_ROUNDOFF * abs(total / tokens) / math.sqrt(tokens)

    def other_settings(self) -> str:
        """Settings of the model that are not those of one process, as a clause; empty where all are."""
        first, second = (run.ranks[0].get("settings", {}) for run in (self.one, self.other))
        found = [
            f"{name.removeprefix('buffer ')} has other values"
            if name.startswith(("buffer ", "rotary "))
            else f"{name} is {first[name]} in one process and {second[name]} in several"
            for name in first
            if name in second and first[name] != second[name]
        ]
        return "; ".join(sorted(found, key=lambda each: "other values" in each)[:3])


def is_norm(name: str) -> bool:
    """Weights and biases of norms."""
    return bool(re.search(r"norm(_weight|_bias|\.weight|\.bias)$", name))


def is_bias(name: str) -> bool:
    """Biases, of norms too."""
    return name.endswith("bias")


def is_router(name: str) -> bool:
    """What sends tokens to experts, under the names of both libraries."""
    return ".router." in name or ".mlp.gate." in name


def is_expert(name: str) -> bool:
    """Weights of experts that tokens are sent to."""
    return ".experts." in name


def is_embedding(name: str) -> bool:
    """Embeddings and output layers, under the names of both libraries."""
    return any(part in name for part in ("embed_tokens", "word_embeddings", "wte", "lm_head", "output_layer"))


def listed(names: list[str]) -> str:
    """The first three, and how many more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
