"""All estimates of one strategy, or of columns of strategies, in one call."""

from __future__ import annotations

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.estimate.communication import communication
from toolkit.estimate.host import host_memory
from toolkit.estimate.memory import memory
from toolkit.estimate.step import step
from toolkit.estimates import Estimate
from toolkit.model import ModelSpec
from toolkit.strategy import Strategy
from toolkit.workload import Workload


def evaluate(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy, calibration: Calibration
) -> Estimate:
    """Memory on device and host, communication and time of ``strategy``; pure, no check of its legality."""
    sent = communication(model, cluster, workload, strategy, calibration)
    return Estimate(
        memory=memory(model, cluster, workload, strategy, calibration),
        host_memory=host_memory(model, cluster, workload, strategy, calibration),
        communication=sent,
        step=step(model, cluster, workload, strategy, sent, calibration),
    )
