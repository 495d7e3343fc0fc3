"""Why this plan: each choice against the best plan without it, from the searched numbers."""

from __future__ import annotations

from typing import Any

from toolkit.estimate.verdict import VERDICTS
from toolkit.search.planner import Block, Choice, SearchResult
from toolkit.search.rank import PRICE_OF_RUNG, RUNGS, ladder, rung
from toolkit.search.request import Request
from toolkit.strategy import OFFLOAD, RECOMPUTE, Strategy, describe
from toolkit.units import format_bytes, format_seconds

# field of Strategy, what the choice is called, the value that means "without it"
_CHOICES = (
    ("pp", "pipeline parallelism (pp {value})", 1),
    ("tp", "tensor parallelism (tp {value})", 1),
    ("cp", "context parallelism (cp {value})", 1),
    ("ep", "expert parallelism (ep {value})", 1),
    ("virtual_pipeline_stages", "{value} virtual pipeline stages", 1),
    ("recompute", "recomputation ({value})", 0),
    ("offload", "offload ({value})", 0),
    ("hpz", "a secondary parameter copy in groups of {value} (hpZ)", 1),
)


def reasons(request: Request, result: SearchResult, choice: Choice) -> tuple[str, ...]:
    """Sentences for one choice: its place on the ladder, then each degree against its absence."""
    said = [_ladder_reason(result, choice), *_faster_but_lower(request, result, choice)]
    for field, words, absent in _CHOICES:
        value = getattr(choice.strategy, field)
        if value != absent and field not in request.pins:
            named = {"recompute": RECOMPUTE, "offload": OFFLOAD}.get(field)
            said.append(_against(result, choice, field, absent, words.format(value=named[value] if named else value)))
    said += [f"{field} {value} is pinned by the request" for field, value in sorted(request.pins.items())]
    return tuple(said)


def _ladder_reason(result: SearchResult, choice: Choice) -> str:
    """Why the plan is not on a lower rung."""
    mine = int(rung(choice.strategy))
    lower = [step for step in ladder(result.blocks) if RUNGS.index(step.name) < mine]
    limit = format_bytes(choice.limit_bytes)
    if not lower:
        return f"{RUNGS[mine]}: the simplest layout, and it fits"
    misses = [f"{step.name} needs {format_bytes(step.least_bytes)}" for step in lower if not step.fitting]
    slower = [
        f"{step.name} takes {format_seconds(step.best_seconds)}"
        for step in lower
        if step.fitting and step.best_seconds > choice.estimate.step.seconds
    ]
    parts = []
    if misses:
        parts.append(f"at least, of {limit}: " + "; ".join(misses))
    if slower:
        parts.append(f"against {format_seconds(choice.estimate.step.seconds)} a step: " + "; ".join(slower))
    if not parts:
        return f"{RUNGS[mine]}: a lower rung is faster and ranked before it"
    return f"{RUNGS[mine]}: " + ". ".join(parts)


def _faster_but_lower(request: Request, result: SearchResult, choice: Choice) -> list[str]:
    """The fastest plans, fitting and tight, where this one is ranked before them for being simpler or smaller."""
    if request.objective == "memory":
        return []
    mine, said = choice.estimate.step.seconds, []
    for verdict in ("fits", "tight"):
        fastest = _fastest(result.blocks, VERDICTS.index(verdict))
        if fastest is None or fastest[0] >= mine:
            continue
        seconds, strategy = fastest
        gain = f"{describe(strategy)} is {1.0 - seconds / mine:.1%} faster"
        if verdict == "tight":
            said.append(f"{gain} but tight: plans that fit are ranked first")
        else:
            kind = int(rung(strategy))
            said.append(
                f"{gain}, which is within the error of the estimates: {RUNGS[kind]} goes before simpler plans "
                f"from about {PRICE_OF_RUNG[kind]:.0%} on"
            )
    return said


def _fastest(blocks: list[Block], verdict: int) -> tuple[float, Strategy] | None:
    import numpy

    best: tuple[float, Strategy] | None = None
    for block in blocks:
        seconds = numpy.where(block.verdict == verdict, block.seconds, numpy.inf)
        row = int(seconds.argmin())
        if numpy.isfinite(seconds[row]) and (best is None or seconds[row] < best[0]):
            best = (float(seconds[row]), block.strategy.take(row))
    return best


def _against(result: SearchResult, choice: Choice, field: str, absent: int, words: str) -> str:
    best, least = _best_without(result.blocks, choice.strategy, field, absent)
    if best is not None:
        seconds, strategy = best
        change = seconds / choice.estimate.step.seconds - 1.0
        verb = (
            f"{change:.1%} slower" if change >= 0 else f"{-change:.1%} faster, but ranked lower (tight or higher rung)"
        )
        return f"{words}: without it the best plan is {verb} ({describe(strategy)})"
    if least is not None:
        return f"{words}: without it nothing fits (least {format_bytes(least)} of {format_bytes(choice.limit_bytes)})"
    return f"{words}: there is no legal plan without it"


def _best_without(
    blocks: list[Block], strategy: Strategy, field: str, absent: int
) -> tuple[tuple[float, Strategy] | None, float | None]:
    """Fastest fitting candidate of the same framework with ``field`` switched off, and the least memory without it."""
    import numpy

    best: tuple[float, Strategy] | None = None
    least: float | None = None
    for block in blocks:
        if block.strategy.framework != strategy.framework:
            continue
        column: Any = getattr(block.strategy, field) + numpy.zeros(len(block.seconds), int)
        rows = numpy.flatnonzero(column == absent)
        if not len(rows):
            continue
        smallest = float(block.total_bytes[rows].min())
        least = smallest if least is None else min(least, smallest)
        row = int(rows[block.seconds[rows].argmin()])
        if numpy.isfinite(block.seconds[row]) and (best is None or block.seconds[row] < best[0]):
            best = (float(block.seconds[row]), block.strategy.take(row))
    return best, least
