"""Errors summed up: over all runs, the recommended ones, and by source, framework and accelerator."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from toolkit.validate.groups import Pair, choice, rank_correlation
from toolkit.validate.job import Skip
from toolkit.validate.score import Bar, Score
from toolkit.validate.statistics import percentile


def summarise(scores: Sequence[Score], skipped: Sequence[Skip]) -> dict[str, Any]:
    """``all``, ``recommended`` (by the column scoreset), ``by_source``, ``by_framework``, ``by_accelerator``."""
    return {
        "all": statistics(scores, scores, skipped),
        "recommended": statistics(
            [s for s in scores if s.job.row.is_recommended_for("time")],
            [s for s in scores if s.job.row.is_recommended_for("mem")],
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
    fits = [each for each in judged if each.verdict == "fits"]
    contradicted = sum(each.outcome == "OOM" for each in fits)
    return {
        "scored": len({id(each) for each in (*timed, *held)}),
        "step_time": _errors([(s, seconds, s.time_bar) for s in timed if (seconds := _seconds(s)) is not None]),
        "peak_memory": _errors([(s, held_, s.memory_bar) for s in held if (held_ := _bytes(s)) is not None]),
        "verdicts": {
            "rows": len(judged),
            "oom_called_fit": contradicted,
            "fit_called_no": sum(s.outcome == "ok" and s.verdict == "no" for s in judged),
            "called_fit": len(fits),
            "share_of_fits_contradicted": contradicted / len(fits) if fits else None,
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


def _seconds(score: Score) -> Pair | None:
    return None if score.measured_seconds is None else (score.predicted_seconds, score.measured_seconds)


def _bytes(score: Score) -> Pair | None:
    return None if score.measured_bytes is None else (score.predicted_bytes, score.measured_bytes)


def _errors(found: Sequence[tuple[Score, Pair, Bar | None]]) -> dict[str, Any]:
    """Relative error is (predicted - measured) / measured; the bias is its median."""
    pairs = [(score, pair) for score, pair, _ in found]
    signed = [predicted / measured - 1.0 for _, (predicted, measured) in pairs]
    absolute = [abs(error) for error in signed]
    correlation, groups = rank_correlation(pairs)
    return {
        "rows": len(pairs),
        "median_abs_relative_error": percentile(absolute, 0.5) if absolute else None,
        "p90_abs_relative_error": percentile(absolute, 0.9) if absolute else None,
        "mean_abs_relative_error": math.fsum(absolute) / len(absolute) if absolute else None,
        "worst_abs_relative_error": max(absolute) if absolute else None,
        "bias": percentile(signed, 0.5) if signed else None,
        "rank_correlation": correlation,
        "rank_groups": groups,
        "choice": choice(pairs),
        "interval80": _held([bar for _, _, bar in found if bar is not None]),
    }


def _held(bars: Sequence[Bar]) -> dict[str, Any]:
    """How many intervals hold what was measured: made without the run's source, and without the run alone."""
    rows = len(bars)
    return {
        "rows": rows,
        "share_held": sum(bar.held for bar in bars) / rows if rows else None,
        "share_held_by_runs_of_all_sources": sum(bar.held_by_run for bar in bars) / rows if rows else None,
        "median_high_over_low": percentile([bar.interval.high / bar.interval.low for bar in bars], 0.5)
        if rows
        else None,
    }
