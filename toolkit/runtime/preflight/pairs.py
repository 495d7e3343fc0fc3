"""Which nodes are slow, from all-reduces of pairs of them.

One all-reduce over all nodes is as slow as the slowest and names none. Pairs do: in each round every node works with
one other (the circle method of round-robin tournaments), all pairs at the same time. With

    r(i, j) = measured seconds / the planner's seconds for the same bytes            one pair
    b(i)    = min over the partners j of r(i, j)                                     one node, at its best

a slow node has only slow pairs, a good one has a good pair as soon as one of its partners is good. A node is bad where
``b(i)`` is more than ``factor`` times the lower median of all ``b``: like is compared with like, whatever the planner
expects; half of the nodes may be bad. With two nodes one pair cannot tell which of the two is slow.
"""

from __future__ import annotations

import math
import statistics

from toolkit.runtime.preflight.verdict import Trouble
from toolkit.units import format_bytes

MOST_ROUNDS = 3  # all pairs of four nodes; of more nodes three partners each
# more than this many times slower than the other nodes; processors share cores with whatever else runs
FACTOR, FACTOR_CPU = 2.0, 4.0


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Disjoint pairs, round by round; of an odd number one node rests in each."""
    seats: list[int | None] = [*range(nodes), *([None] if nodes % 2 else [])]
    found = []
    for _ in range(min(MOST_ROUNDS, len(seats) - 1)):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def partner(node: int, pairs: list[tuple[int, int]]) -> int | None:
    """Who works with this node in one round."""
    for a, b in pairs:
        if node in (a, b):
            return b if node == a else a
    return None


def judge(
    hosts: list[str], ratios: dict[tuple[int, int], float], what: dict[tuple[int, int], str], assumed: bool, cpu: bool
) -> list[Trouble]:
    """Troubles of nodes; ``ratios`` has infinity for a pair that failed, ``what`` a sentence on each pair."""
    factor = FACTOR_CPU if cpu else FACTOR
    best: dict[int, tuple[float, tuple[int, int]]] = {}
    for pair, ratio in ratios.items():
        for node in pair:
            if node not in best or ratio < best[node][0]:
                best[node] = (ratio, pair)
    if not best:
        return []
    usual = statistics.median_low(ratio for ratio, _ in best.values())
    troubles, named = [], set()
    if len(hosts) > 2 and math.isfinite(usual):
        for node, (ratio, pair) in sorted(best.items()):
            if ratio > factor * usual:
                named.add(node)
                times = f"{ratio / usual:.1f} times slower than" if math.isfinite(ratio) else "unlike"
                text = f"its all-reduces are {times} those of the other nodes; its best: {what[pair]}"
                troubles.append(_trouble((hosts[node],), text))
    others = {pair: ratio for pair, ratio in ratios.items() if not named & set(pair)}
    for pair, ratio in others.items():
        both = tuple(hosts[node] for node in pair)
        if math.isinf(ratio):
            some = len(others) > 1 and any(math.isfinite(each) for each in others.values())
            troubles.append(_trouble(() if not some else both, what[pair], "warning" if some else "error"))
        elif len(hosts) > 2 and ratio > factor * usual:
            troubles.append(_trouble(both, f"only this pair is slow: {what[pair]}", "warning"))
    if others and math.isfinite(usual) and usual > factor:
        slowest = max(others, key=lambda pair: others[pair])
        text = f"all nodes are slower than planned: {what[slowest]}"
        severity = "warning" if assumed or cpu else "error"
        troubles.append(_trouble((), text, severity, "plan with the link's real bandwidth, or look at the fabric"))
    return troubles


def sentence(hosts: list[str], pair: tuple[int, int], size: int, seconds: float, expected: float, error: str) -> str:
    """What one pair did."""
    both = f"{hosts[pair[0]]} with {hosts[pair[1]]}"
    if error:
        return f"{both} failed: {error}"
    took = f"{both} took {1e3 * seconds:.3g} ms for an all-reduce of {format_bytes(size)}"
    return f"{took}, expected {1e3 * expected:.3g} ms"


def _trouble(
    nodes: tuple[str, ...], text: str, severity: str = "error", remedy: str = "look at the node's network cards"
) -> Trouble:
    return Trouble(check="collective", nodes=nodes, message=text, remedy=remedy, severity=severity)
