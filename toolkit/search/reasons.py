"""Why this plan: each choice against the best plan without it, from the searched numbers."""

from __future__ import annotations

import math
from typing import Any

from toolkit.estimates import VERDICTS
from toolkit.pipeline_split import pipeline_split
from toolkit.search.planner import Block, Choice, SearchResult
from toolkit.search.programs import programs
from toolkit.search.rank import RUNGS, Rung, price, rung
from toolkit.search.request import Request
from toolkit.strategy import Strategy, describe, value_in_words
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
_IMPLIED_BY = {"recompute": ("recompute_layers",), "cp": ("cp_method",)}  # a pin that leaves nothing to choose
FITS, TIGHT = VERDICTS.index("fits"), VERDICTS.index("tight")
SAME = 0.0005  # a difference that prints as 0.0 % is none
NOTABLE = 0.01  # a plan that is faster by less than this is not worth a sentence


def reasons(request: Request, result: SearchResult, choice: Choice) -> tuple[str, ...]:
    """Sentences for one choice: its place on the ladder, then each degree against its absence."""
    if request.objective == "memory":
        said = [_memory_reason(result, choice)]
    else:
        said = [_ladder_reason(request, result, choice), *_faster_but_lower(request, result, choice)]
    for field, words, absent in _CHOICES:
        value = getattr(choice.strategy, field)
        if value != absent and not {field, *_IMPLIED_BY.get(field, ())} & request.pins.keys():
            named = words.format(value=value_in_words(field, value))
            said.append(_against(request, result, choice, field, absent, named))
    if choice.strategy.recompute_layers and "recompute_layers" not in request.pins:
        said.append(_some_layers(request, result, choice))
    if choice.strategy.cp_method != "p2p" and "cp_method" not in request.pins:
        said.append(_not_a_ring(result, choice))
    said += [
        f"{field.replace('_', ' ')} {value_in_words(field, value)} is pinned by the request"
        for field, value in sorted(request.pins.items())
    ]
    return tuple(said)


def _some_layers(request: Request, result: SearchResult, choice: Choice) -> str:
    """Why this number of layers is recomputed, and not all."""
    s = choice.strategy
    split = pipeline_split(request.model.num_hidden_layers, s.pp, s.virtual_pipeline_stages)
    words = f"recomputation of {s.recompute_layers} of the {split.middle} layers of a stage, the fewest that "
    words += "fit" if choice.verdict == "fits" else "are tight"
    seconds = _seconds_of(result.blocks, s, recompute_layers=0)
    if seconds is None or not math.isfinite(seconds):
        return words
    return f"{words}: all of them would take {longer(seconds / choice.estimate.step.seconds)}"


def _not_a_ring(result: SearchResult, choice: Choice) -> str:
    """Why keys and values are not passed round a ring, Megatron's default."""
    words = f"cp method {choice.strategy.cp_method}"
    seconds = _seconds_of(result.blocks, choice.strategy, cp_method="p2p")
    if seconds is None:
        return f"{words}: a ring (p2p) is not legal with this layout"
    if not math.isfinite(seconds):
        return f"{words}: a ring (p2p) does not fit with this layout"
    return f"{words}: a ring (p2p) would take {longer(seconds / choice.estimate.step.seconds)}"


def _seconds_of(blocks: list[Block], strategy: Strategy, **changed: int | str) -> float | None:
    """Seconds of the searched row that is ``strategy`` but for what is ``changed``; None where there is none."""
    import numpy

    wanted = {name: changed.get(name, getattr(strategy, name)) for name in strategy.__struct_fields__}
    for block in blocks:
        same = numpy.ones(len(block.seconds), dtype=bool)
        for name, value in wanted.items():
            same &= getattr(block.strategy, name) == value
        if same.any():
            return float(block.seconds[int(same.argmax())])
    return None


def longer(ratio: float) -> str:
    """A longer time: in percent up to twice as long, then as a multiple."""
    return f"{ratio - 1.0:.1%} longer" if ratio < 2.0 else f"{ratio:.3g} times as long"


def _ladder_reason(request: Request, result: SearchResult, choice: Choice) -> str:
    """Why the plan is not on a lower rung."""
    mine, seconds = int(rung(choice.strategy)), choice.estimate.step.seconds
    lower = [step for step in result.ladder if RUNGS.index(step.name) < mine]
    if not lower:
        return f"{RUNGS[mine]}: the simplest layout that is legal here, and it {_fits(choice.verdict)}"
    large = [step for step in lower if step.verdict == "no" and step.least_bytes > choice.limit_bytes]
    host = [step for step in lower if step.verdict == "no" and step not in large]
    tight = [step for step in lower if step.verdict == "tight" and choice.verdict == "fits"]
    others = [step for step in lower if step.verdict != "no" and step not in tight]
    slower = [step for step in others if step.best_seconds > seconds]
    faster = [step for step in others if step.best_seconds <= seconds]
    parts = [
        _listed(f"need more than the {format_bytes(choice.limit_bytes)} of a GPU", large, "least_bytes"),
        _listed("need more host memory than a node has", host, ""),
        _listed("are tight", tight, "best_seconds"),
        _listed(f"take longer than {format_seconds(seconds)}", slower, "best_seconds"),
        _listed("are no slower, and ranked before it", faster, "best_seconds"),
    ]
    timed = {step.best.framework for step in slower + faster if step.best is not None}
    causes = [programs(request, choice.strategy.framework, framework) for framework in sorted(timed)]
    parts += [f"in part the program, not the layout: {cause}" for cause in dict.fromkeys(causes) if cause]
    return f"{RUNGS[mine]}, because simpler layouts " + "; ".join(part for part in parts if part)


def _listed(what: str, steps: list[Rung], figure: str) -> str:
    if not steps:
        return ""
    return f"{what}: " + ", ".join(f"{_short(step.name)}{_figure(step, figure)}" for step in steps)


def _figure(step: Rung, figure: str) -> str:
    if figure == "least_bytes":
        return f" at least {format_bytes(step.least_bytes)}"
    return f" {format_seconds(step.best_seconds)}" if figure else ""


def _short(name: str) -> str:
    return name.partition(":")[0]


def _fits(verdict: str) -> str:
    return {"fits": "fits", "tight": "is tight"}.get(verdict, "does not fit")


def _memory_reason(result: SearchResult, choice: Choice) -> str:
    """Where bytes are the objective: what the other rungs need at least."""
    mine, needed = int(rung(choice.strategy)), choice.estimate.memory.total_bytes
    others = [step for step in result.ladder if RUNGS.index(step.name) != mine]
    more = _listed("need", [step for step in others if step.least_bytes > needed], "least_bytes")
    return f"{RUNGS[mine]}, with {format_bytes(needed)}" + (f", where other layouts {more}" if more else "")


def _faster_but_lower(request: Request, result: SearchResult, choice: Choice) -> list[str]:
    """The fastest plans, fitting and tight, and why they are ranked where they are."""
    mine, said = choice.estimate.step.seconds, []
    for verdict in (FITS, TIGHT):
        fastest = _fastest(result.blocks, verdict)
        if fastest is None or fastest[0] >= mine * (1.0 - NOTABLE):
            continue
        seconds, strategy = fastest
        gain = 1.0 - seconds / mine
        asked = 1.0 - (1.0 + float(price(choice.strategy))) / (1.0 + float(price(strategy)))
        words = f"{describe(strategy)} is {gain:.1%} faster"
        if verdict == TIGHT and choice.verdict == "fits":
            said.append(f"{words} but tight: plans that fit are ranked first")
        elif gain > asked:
            said.append(f"{words} and ranked before it")
        else:
            said.append(f"{words}, less than the {asked:.1%} that its complexity must earn ({_short(_rung(strategy))})")
        cause = programs(request, choice.strategy.framework, strategy.framework)
        said[-1] += f"; in part by its program, not its layout: {cause}" if cause else ""
    return said


def _rung(strategy: Strategy) -> str:
    return RUNGS[int(rung(strategy))]


def _fastest(blocks: list[Block], verdict: int) -> tuple[float, Strategy] | None:
    import numpy

    best: tuple[float, Strategy] | None = None
    for block in blocks:
        seconds = numpy.where(block.verdict == verdict, block.seconds, numpy.inf)
        row = int(seconds.argmin())
        if numpy.isfinite(seconds[row]) and (best is None or seconds[row] < best[0]):
            best = (float(seconds[row]), block.strategy.take(row))
    return best


def _against(request: Request, result: SearchResult, choice: Choice, field: str, absent: int, words: str) -> str:
    for verdict in (FITS, TIGHT):
        same = [block for block in result.blocks if block.strategy.framework == choice.strategy.framework]
        best, least = _best_without(same, field, absent, verdict)
        if least is None:  # the framework cannot do without, others may
            best, least = _best_without(result.blocks, field, absent, verdict)
        if best is None:
            continue
        seconds, strategy = best
        if request.objective == "memory" and least is not None:
            return f"{words}: without it plans need at least {format_bytes(least)}"
        if verdict == TIGHT and choice.verdict == "fits":
            return f"{words}: without it plans are tight at best ({describe(strategy)})"
        change = seconds / choice.estimate.step.seconds - 1.0
        if abs(change) < SAME:
            return f"{words}: without it the fastest plan is as fast ({describe(strategy)})"
        if change > 0:
            return f"{words}: without it the fastest plan takes {longer(1.0 + change)} ({describe(strategy)})"
        return f"{words}: without it {describe(strategy)} is {-change:.1%} faster ({_short(_rung(strategy))})"
    if least is not None:
        return f"{words}: without it nothing fits (least {format_bytes(least)} of {format_bytes(choice.limit_bytes)})"
    return f"{words}: there is no legal plan without it"


def _best_without(
    blocks: list[Block], field: str, absent: int, verdict: int
) -> tuple[tuple[float, Strategy] | None, float | None]:
    """Fastest candidate of a verdict with ``field`` off, and the least memory without it."""
    import numpy

    best: tuple[float, Strategy] | None = None
    least: float | None = None
    for block in blocks:
        column: Any = getattr(block.strategy, field) + numpy.zeros(len(block.seconds), int)
        rows = numpy.flatnonzero(column == absent)
        if not len(rows):
            continue
        smallest = float(block.total_bytes[rows].min())
        least = smallest if least is None else min(least, smallest)
        seconds = numpy.where(block.verdict[rows] == verdict, block.seconds[rows], numpy.inf)
        row = int(seconds.argmin())
        if numpy.isfinite(seconds[row]) and (best is None or seconds[row] < best[0]):
            best = (float(seconds[row]), block.strategy.take(int(rows[row])))
    return best, least
