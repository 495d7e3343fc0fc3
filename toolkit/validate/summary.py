"""Errors summed up: over all runs, the recommended ones, and by source, framework and accelerator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from toolkit.validate.job import Skip
from toolkit.validate.score import Score
from toolkit.validate.statistics import percentile, spearman

SMALLEST_GROUP = 3  # runs; two are in order or not, by chance as often as not
# runs that agree in these columns differ only in strategy
SAME_JOB = (
    *("source", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "n_experts", "top_k"),
    *("task", "framework", "gpu", "gpu_mem_gb", "n_gpus", "gpus_per_node", "interconnect", "precision", "global_batch"),
    *("precision_norm", "flash_attn", "optimizer", "compile"),
)

Pair = tuple[float, float]  # predicted, measured


def summarise(scores: Sequence[Score], skipped: Sequence[Skip]) -> dict[str, Any]:
    """``all``, ``recommended`` (by the column scoreset), ``by_source``, ``by_framework``, ``by_accelerator``."""
    return {
        "all": statistics(scores, scores, skipped),
        "recommended": statistics(
            [s for s in scores if "time" in s.job.row.text("scoreset")],
            [s for s in scores if "mem" in s.job.row.text("scoreset")],
            [s for s in skipped if s.row.text("scoreset")],
        ),
        "by_source": _split(scores, skipped, lambda s: s.job.row.text("source"), lambda s: s.row.text("source")),
        "by_framework": _split(scores, skipped, lambda s: s.job.strategy.framework, lambda s: s.framework),
        "by_accelerator": _split(scores, skipped, lambda s: s.job.cluster.accelerator.name, lambda s: s.accelerator),
    }


def statistics(timed: Sequence[Score], held: Sequence[Score], skipped: Sequence[Skip]) -> dict[str, Any]:
    """Step time of some runs, peak memory of some, verdicts of both, and the reasons of rows left out."""
    judged = [each for each in {id(s): s for s in (*timed, *held)}.values() if each.outcome]
    reasons = Counter(each.reason for each in skipped)
    return {
        "step_time": _errors(
            timed, lambda s: None if s.measured_seconds is None else (s.predicted_seconds, s.measured_seconds)
        ),
        "peak_memory": _errors(
            held, lambda s: None if s.measured_bytes is None else (s.predicted_bytes, s.measured_bytes)
        ),
        "verdicts": {
            "rows": len(judged),
            "oom_called_fit": sum(s.outcome == "OOM" and s.verdict == "fits" for s in judged),
            "fit_called_no": sum(s.outcome == "ok" and s.verdict == "no" for s in judged),
        },
        "skipped": {"rows": reasons.total(), "reasons": dict(reasons.most_common())},
    }


def _split(
    scores: Iterable[Score],
    skipped: Iterable[Skip],
    of_score: Callable[[Score], str],
    of_skip: Callable[[Skip], str],
) -> dict[str, Any]:
    found: dict[str, tuple[list[Score], list[Skip]]] = {}
    for each in scores:
        found.setdefault(of_score(each), ([], []))[0].append(each)
    for left_out in skipped:
        found.setdefault(of_skip(left_out), ([], []))[1].append(left_out)
    return {name: statistics(found[name][0], found[name][0], found[name][1]) for name in sorted(found)}


def _errors(scores: Sequence[Score], pair: Callable[[Score], Pair | None]) -> dict[str, Any]:
    """Relative error is (predicted - measured) / measured; the bias is its median."""
    pairs = [(each, found) for each in scores if (found := pair(each)) is not None]
    signed = [predicted / measured - 1.0 for _, (predicted, measured) in pairs]
    absolute = [abs(error) for error in signed]
    correlation, groups = rank_correlation(pairs)
    return {
        "rows": len(pairs),
        "median_abs_relative_error": percentile(absolute, 0.5) if absolute else None,
        "p90_abs_relative_error": percentile(absolute, 0.9) if absolute else None,
        "worst_abs_relative_error": max(absolute) if absolute else None,
        "bias": percentile(signed, 0.5) if signed else None,
        "rank_correlation": correlation,
        "rank_groups": groups,
    }


def rank_correlation(pairs: Iterable[tuple[Score, Pair]]) -> tuple[float | None, int]:
    """Spearman's coefficient of each group of runs that differ only in strategy, averaged by the number of runs.

    A group has at least three runs with at least two strategies. Returns the mean and the number of groups.
    """
    groups: dict[tuple[str, ...], list[tuple[Score, Pair]]] = {}
    for each, found in pairs:
        row = each.job.row
        key = (*(row.text(column) for column in SAME_JOB), row.text("mem_basis"))
        groups.setdefault(key, []).append((each, found))
    total, weight, count = 0.0, 0, 0
    for group in groups.values():
        if len(group) < SMALLEST_GROUP or len({repr(each.job.strategy) for each, _ in group}) < 2:
            continue
        coefficient = spearman([p for _, (p, _) in group], [m for _, (_, m) in group])
        if coefficient is not None:
            total, weight, count = total + coefficient * len(group), weight + len(group), count + 1
    return (total / weight if weight else None), count
