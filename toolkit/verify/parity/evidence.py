"""What the rules that name a cause look at, and how they speak of tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolkit.plan import Plan
from toolkit.strategy import Strategy
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


def is_norm(name: str) -> bool:
    """Weights and biases of norms."""
    return bool(re.search(r"norm(_weight|_bias|\.weight|\.bias)$", name))


def is_embedding(name: str) -> bool:
    """Embeddings and output layers, under the names of both libraries."""
    return any(part in name for part in ("embed_tokens", "word_embeddings", "wte", "lm_head", "output_layer"))


def listed(names: list[str]) -> str:
    """The first three, and how many more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
