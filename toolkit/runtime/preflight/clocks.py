"""Which clock is off, from the offset of each node's clock to that of the first node.

    o(i) = the first node's clock - node i's       d(i) = o(i) - lower median of all o       node i is behind by d(i)

A node is named where ``|d|`` is sure, which is to say more than half a round trip, whoever is first. Of two nodes
nobody knows which one is wrong: then the job is told.
"""

from __future__ import annotations

import statistics

import msgspec

from toolkit.runtime.preflight.storage import clock_troubles
from toolkit.runtime.preflight.verdict import Trouble


def judge(by_node: dict[str, tuple[float, float]]) -> list[Trouble]:
    """Troubles from offset and error of each node, in seconds, as :mod:`toolkit.runtime.preflight.meeting` has them."""
    usual = statistics.median_low([offset for offset, _ in by_node.values()]) if len(by_node) > 2 else 0.0
    troubles = []
    for host, (offset, error) in by_node.items():
        apart = offset - usual
        sure = max(abs(apart) - error, 0.0)
        whose = "that of most nodes" if len(by_node) > 2 else f"that of {next(iter(by_node))}"
        found = clock_troubles(host, sure if apart > 0 else -sure, whose)
        if len(by_node) == 2:
            found = [msgspec.structs.replace(each, nodes=(), message=f"{host}: {each.message}") for each in found]
        troubles += found
    return troubles
