"""Bytes that a rank sends on each parallel axis: counted collectives beside the predicted communication.

A group of ranks is told by its size and by the distance of its members: ranks are ordered tp-cp-ep-dp-pp, so the
tensor group is contiguous, the context group strides over it, the pipeline over all of these. The estimate is of the
rank that sends most on an axis (the pipeline's ends send to one side, its middle holds no embedding), so it is set
beside the most that any of the counted ranks sends. The ranks that share an expert by expert tensor parallelism are
ranks of the tensor group: nothing tells apart what those two axes send, and they are compared as one. Attention under
context parallelism stands for itself in a dry run and sends nothing: that axis is left out.
"""

from __future__ import annotations

from typing import Any

from toolkit.calibration import Calibration
from toolkit.estimate.communication import communication
from toolkit.plan import Plan
from toolkit.strategy import Strategy

COUNTED = ("tp", "ep", "pp", "dp")
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
    return "dp"


def compared(
    plan: Plan, calibration: Calibration, counted_ranks: list[list[dict[str, Any]]]
) -> dict[str, dict[str, float]]:
    """``{axis: {predicted_bytes, counted_bytes, relative_error}}`` of one step, for axes on which anything is sent.

    ``counted_ranks`` are the collectives of each counted rank.
    """
    predicted = communication(plan.model, plan.cluster, plan.workload, plan.strategy, calibration)
    most = dict.fromkeys(COUNTED, 0.0)
    for collectives in counted_ranks:
        sent = dict.fromkeys(COUNTED, 0.0)
        for one in collectives:
            axis = axis_of(plan.strategy, one["operation"], one["ranks"], one["stride"])
            if axis:
                sent[axis] += one["sent_bytes"]
        most = {axis: max(most[axis], sent[axis]) for axis in COUNTED}
    expected = {axis: float(getattr(predicted, f"{axis}_bytes")) for axis in COUNTED}
    if plan.model.is_moe and plan.strategy.etp > 1:
        most, expected = _together(most), _together(expected)
    found = {}
    for axis, seen in most.items():
        said = expected[axis]
        if said or seen:
            error = (said - seen) / max(seen, 1.0)
            found[axis] = {"predicted_bytes": said, "counted_bytes": seen, "relative_error": error}
    return found


def _together(sent: dict[str, float]) -> dict[str, float]:
    apart = {axis: each for axis, each in sent.items() if axis not in ("tp", "ep")}
    return {"tp+ep": sent["tp"] + sent["ep"]} | apart


def disagreements(axes: dict[str, dict[str, float]], tolerance: float) -> list[str]:
    """A sentence for each axis that is off by more than the tolerance and carries more than a hundredth of all."""
    total = sum(max(one["counted_bytes"], one["predicted_bytes"]) for one in axes.values())
    return [
        f"{axis}: sends predicted {one['predicted_bytes']:.4g} bytes, counted {one['counted_bytes']:.4g}:"
        f" {one['relative_error']:+.1%}"
        for axis, one in axes.items()
        if abs(one["relative_error"]) > tolerance
        and max(one["counted_bytes"], one["predicted_bytes"]) > LEAST_SHARE * total
    ]
