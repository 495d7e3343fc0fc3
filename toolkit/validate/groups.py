"""Runs of one job that differ only in strategy: is their order right, and is the one picked the best of them?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from toolkit.validate.score import Score
from toolkit.validate.statistics import percentile, spearman

SMALLEST_GROUP = 3  # strategies; two are in order or not, by chance as often as not
ALIKE = 0.03  # half of the runs that a source repeats with nothing changed differ by more than 2.7 %
# runs that agree in these columns differ only in strategy
SAME_JOB = (
    *("source", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "n_experts", "top_k"),
    *("task", "framework", "gpu", "gpu_mem_gb", "n_gpus", "gpus_per_node", "interconnect", "precision", "global_batch"),
    *("precision_norm", "flash_attn", "optimizer", "compile"),
)

Pair = tuple[float, float]  # predicted, measured


def groups(pairs: Iterable[tuple[Score, Pair]], least: int) -> list[list[Pair]]:
    """Runs that differ only in strategy: groups of at least ``least`` strategies, a pair for each.

    Runs of one strategy repeat a measurement: their median counts, or the order of noise would be scored.
    """
    found: dict[tuple[str, ...], dict[str, list[Pair]]] = {}
    for each, pair in pairs:
        row = each.job.row
        key = (*(row.text(column) for column in SAME_JOB), row.text("mem_basis"))
        strategy = repr((each.job.strategy, each.job.workload))
        found.setdefault(key, {}).setdefault(strategy, []).append(pair)
    return [
        [(runs[0][0], percentile([measured for _, measured in runs], 0.5)) for runs in group.values()]
        for group in found.values()
        if len(group) >= least
    ]


def rank_correlation(pairs: Iterable[tuple[Score, Pair]]) -> tuple[float | None, int]:
    """Spearman's coefficient of each group of runs that differ only in strategy, averaged by the number of strategies.

    A group has at least three strategies. Returns the mean and the number of groups.
    """
    total, weight, count = 0.0, 0, 0
    for group in groups(pairs, SMALLEST_GROUP):
        coefficient = spearman([p for p, _ in group], [m for _, m in group])
        if coefficient is not None:
            total, weight, count = total + coefficient * len(group), weight + len(group), count + 1
    return (total / weight if weight else None), count


def regret(group: Sequence[Pair]) -> float:
    """How much worse the run with the least prediction was than the best of its group, as a share of the best.

    Of equal predictions the worst run counts.
    """
    least = min(predicted for predicted, _ in group)
    picked = max(measured for predicted, measured in group if predicted == least)
    return picked / min(measured for _, measured in group) - 1.0


def pairs_in_order(group: Sequence[Pair]) -> tuple[int, int]:
    """Pairs of strategies that the prediction orders as the measurement does, and pairs whose order is known.

    Those measured within ``ALIKE`` of each other have none.
    """
    right = pairs = 0
    for (p, m), (q, n) in combinations(group, 2):
        if max(m, n) > (1.0 + ALIKE) * min(m, n):
            pairs += 1
            right += (p - q) * (m - n) > 0
    return right, pairs


def choice(pairs: Iterable[tuple[Score, Pair]]) -> dict[str, Any]:
    """What picking the least prediction of each group costs, and the share of pairs in the right order."""
    found = groups(pairs, 2)
    costs = [regret(group) for group in found]
    ordered = [pairs_in_order(group) for group in found]
    total = sum(count for _, count in ordered)
    return {
        "groups": len(found),
        "mean_regret": math.fsum(costs) / len(costs) if costs else None,
        "max_regret": max(costs) if costs else None,
        "pairs": total,
        "pairs_in_order": sum(right for right, _ in ordered) / total if total else None,
    }
