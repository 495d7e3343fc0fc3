"""Bytes that a rank sends on each parallel axis: counted collectives beside the predicted communication.

A group of ranks is told by its size and by the distance of its members: ranks are ordered tp-cp-ep-dp-pp, so the
tensor group is contiguous, the context group strides over it, the pipeline over all of these.
"""

from __future__ import annotations

from typing import Any

from toolkit.calibration import Calibration
from toolkit.estimate.communication import communication
from toolkit.estimates import AXES
from toolkit.plan import Plan
from toolkit.strategy import Strategy

LEAST_SHARE = 0.01  # of all that is sent, below which an axis is no finding: norms, flags, counts


def axis_of(strategy: Strategy, operation: str, ranks: int, stride: int) -> str:
    """Which axis a collective belongs to; empty for a group of one rank."""
    s = strategy
    if ranks < 2:
        return ""
    if operation == "send" or (s.pp > 1 and stride >= s.tp * s.cp * s.dp):
        return "pp"
    if operation == "all_to_all" and s.ep > 1:
        return "ep"
    if s.tp > 1 and stride == 1 and ranks == s.tp:
        return "tp"
    if s.cp > 1 and stride == s.tp and ranks == s.cp:
        return "cp"
    return "dp"


def compared(plan: Plan, calibration: Calibration, collectives: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """``{axis: {predicted_bytes, counted_bytes, relative_error}}`` of one step, for axes on which anything is sent."""
    predicted = communication(plan.model, plan.cluster, plan.workload, plan.strategy, calibration)
    counted = dict.fromkeys(AXES, 0.0)
    for one in collectives:
        axis = axis_of(plan.strategy, one["operation"], one["ranks"], one["stride"])
        if axis:
            counted[axis] += one["sent_bytes"]
    found = {}
    for axis in AXES:
        said, seen = float(getattr(predicted, f"{axis}_bytes")), counted[axis]
        if said or seen:
            error = (said - seen) / max(seen, 1.0)
            found[axis] = {"predicted_bytes": said, "counted_bytes": seen, "relative_error": error}
    return found


def matters(axes: dict[str, dict[str, float]], axis: str) -> bool:
    """Whether an axis carries more than a hundredth of what is sent."""
    total = sum(max(one["counted_bytes"], one["predicted_bytes"]) for one in axes.values())
    one = axes[axis]
    return max(one["counted_bytes"], one["predicted_bytes"]) > LEAST_SHARE * total
