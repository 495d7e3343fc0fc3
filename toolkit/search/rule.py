"""Constraint: one rule as data, for the mask of the search, the validation of a plan and the text of an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.cluster import ClusterSpec
from toolkit.model import ModelSpec
from toolkit.strategy import FRAMEWORKS, Strategy
from toolkit.workload import Workload

Predicate = Callable[[ModelSpec, ClusterSpec, Workload, Strategy], Any]
ALL = FRAMEWORKS
DATA_PARALLEL = ("ddp", "deepspeed", "fsdp")


@dataclass(frozen=True)
class Constraint:
    """One rule. ``holds`` works on scalars and columns, and reads the same fields of a strategy whatever they hold.

    ``rule`` says it in general; ``sentence`` and ``remedy`` are formats over m, c, w, s (model, cluster,
    workload, strategy). ``advice`` marks what is legal but pointless or unwise: the search drops it, a
    strategy that the user spelled out is only warned about.
    """

    name: str
    rule: str
    frameworks: tuple[str, ...]
    holds: Predicate
    sentence: str
    remedy: str = ""
    advice: bool = False
    source: str = ""


def divides(part: Any, whole: Any) -> Any:
    """Whether ``part`` divides ``whole``."""
    return whole % part == 0
