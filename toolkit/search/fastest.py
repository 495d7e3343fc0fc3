"""The fastest strategy that fits, whatever its complexity: the search without the ladder.

:class:`Experts` sets it beside a strategy that somebody ran: for the same model, GPUs and batch, what would the
planner choose, and how much faster does it believe that to be?
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.model import ModelSpec
from toolkit.search.blocks import Tally, blocks
from toolkit.search.candidates import spaces
from toolkit.search.constraints import violated
from toolkit.search.planner import Choice, choose
from toolkit.search.request import Request
from toolkit.strategy import FRAMEWORKS, Strategy
from toolkit.units import format_bytes
from toolkit.workload import Workload

# frameworks that run the same model code: what one of them trains, the others train by another configuration
FAMILIES = (("ddp", "deepspeed", "fsdp"), ("megatron",))


@dataclass(frozen=True)
class Expert:
    """A strategy that was run beside the planner's own; None where the planner finds nothing that fits.

    ``outside`` says why the strategy is not among the candidates: empty where the search has it; ``refused`` is the
    first rule that it breaks, in general words.
    """

    published: Choice
    same_family: Choice | None
    any_framework: Choice | None
    outside: tuple[str, ...]
    refused: str = ""

    @property
    def gain(self) -> float | None:
        """Share of the published strategy's predicted time that the best of its family saves; below 0 it loses."""
        return _saved(self.published, self.same_family)

    @property
    def gain_any(self) -> float | None:
        """The same, of the best of all frameworks."""
        return _saved(self.published, self.any_framework)

    @property
    def differs(self) -> tuple[str, ...]:
        """Fields of Strategy in which the best of the same family is not the published one."""
        if self.same_family is None:
            return ()
        mine, theirs = self.same_family.strategy, self.published.strategy
        return tuple(name for name in theirs.__struct_fields__ if getattr(mine, name) != getattr(theirs, name))

    @property
    def excuse(self) -> str:
        """Why the planner's best may be slower than the published strategy; empty where nothing excuses it."""
        if self.outside:
            return "; ".join(self.outside)
        if self.published.verdict == "no":
            needed, limit = self.published.estimate.memory.total_bytes, self.published.limit_bytes
            return f"the published strategy is predicted to need {format_bytes(needed)} of {format_bytes(limit)}"
        return ""


def _saved(published: Choice, mine: Choice | None) -> float | None:
    return None if mine is None else 1.0 - mine.estimate.step.seconds / published.estimate.step.seconds


def fastest(request: Request, calibration: Calibration) -> Choice | None:
    """The legal candidate of least predicted time among those whose memory fits (or is tight), ties to fewer bytes."""
    import numpy

    best: tuple[float, float, Strategy] | None = None
    for block in blocks(request, calibration, Tally(), only_fastest=True):
        seconds = float(block.seconds.min())
        if not numpy.isfinite(seconds) or (best is not None and seconds > best[0]):
            continue
        rows = numpy.flatnonzero(block.seconds == seconds)
        row = int(rows[block.total_bytes[rows].argmin()])
        found = seconds, float(block.total_bytes[row]), block.strategy.take(row)
        if best is None or found[:2] < best[:2]:
            best = found
    return choose(request, calibration, best[2]) if best else None


class Experts:
    """Compares published strategies with the planner's own; a job that was run in several ways is searched once."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._found: dict[bytes, Choice | None] = {}

    def beside(self, model: ModelSpec, cluster: ClusterSpec, workload: Workload, published: Strategy) -> Expert:
        """The planner's fastest plans for a job that was run with ``published``."""
        # what hides communication is the run's own software, the same for both
        fixed = {name: getattr(published, name) for name in ("tp_overlap", "dp_overlap")}
        asked = Request(
            model=model, cluster=cluster, workload=workload, framework=published.framework, fixed=fixed
        )  # fmt: skip
        found = {
            framework: self._fastest(
                asked.replace(
                    framework=framework,
                    workload=_own(workload, published.framework, framework),
                    fixed=fixed if framework == published.framework else {},
                )
            )
            for framework in FRAMEWORKS
        }
        family = next(names for names in FAMILIES if published.framework in names)
        return Expert(
            published=choose(asked, self.calibration, published),
            same_family=_quickest([found[name] for name in family]),
            any_framework=_quickest(list(found.values())),
            outside=_outside(asked, published),
            refused=next((rule.rule for rule, _ in violated(asked, published) if not rule.advice), ""),
        )

    def _fastest(self, request: Request) -> Choice | None:
        key = msgspec.msgpack.encode(request)
        if key not in self._found:
            self._found[key] = fastest(request, self.calibration)
        return self._found[key]


def _own(workload: Workload, ran: str, framework: str) -> Workload:
    """The workload under another framework: kernels of the family that ran, weights as that framework keeps them."""
    alike = framework == ran or {framework, ran} <= {"ddp", "fsdp"}
    return msgspec.structs.replace(
        workload,
        kernels=workload.kernels if (framework == "megatron") == (ran == "megatron") else "default",
        weights=workload.weights if alike else "default",
    )


def _quickest(choices: list[Choice | None]) -> Choice | None:
    there = [choice for choice in choices if choice is not None]
    return min(there, key=lambda choice: choice.estimate.step.seconds, default=None)


def _outside(request: Request, published: Strategy) -> tuple[str, ...]:
    """Rules that the published strategy breaks, and values that the search does not try."""
    broken = [problem.message for _, problem in violated(request, published)]
    for name, usual in (("schedule", "1f1b"), ("vocabulary", "ends")):
        if getattr(published, name) != usual:
            broken.append(f"megatron-core 0.16.1 does not run {name} {getattr(published, name)}")
    for space in () if broken else spaces(request):
        for name, values in space.axes.items():
            value = getattr(published, name)
            if value not in values:
                broken.append(f"the search does not try {name.replace('_', ' ')} {value} here")
    return tuple(broken)
