"""When a run has gone wrong in its numbers: a loss or gradient norm that is not finite, or one far above the last ones.

    nan      the value is not finite
    spike    x > m + k * 1.4826 * MAD   and   x > f * m          m, MAD: median of the last n steps, and of |x - m|

``f`` is 1.1 for the loss and 3 for the gradient norm, whose spread is of its own order; 1.4826 MAD is the standard
deviation of normal values, and neither it nor the median moves with a few spikes among the n. No spike is found in the
learning rate's warm-up, nor before 20 steps (or n, if that is less) are known.

What is done about it (``on_nan``, ``on_spike``): ``stop``; or ``skip``, that is, go back to a checkpoint before and
leave the batch out. That is how PaLM was trained (Chowdhery et al. 2022, arXiv:2204.02311, section 5.1: about 20 spikes
despite clipped gradients; restarted from a checkpoint some 100 steps before, with 200 to 500 batches left out that
cover those seen before and during the spike, after which it did not come again; the same batches gave none from another
checkpoint). OPT-175B (Zhang et al. 2022, arXiv:2205.01068, section 2.5, and its logbook) lowered the learning rate too,
which is another contract here.

Under fp16 what overflows is the loss scale's to answer: the optimizer leaves the step out and lowers the scale. Only
where it cannot be lowered any more is that a fault.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from toolkit.errors import Problem, ToolkitError
from toolkit.record import StepRecord

DIVERGED = 78  # exit code: the same batch gives the same numbers again
NAN, SPIKE = "nan", "spike"
FEWEST, MAD_TO_SIGMA = 20, 1.4826
LEAST = {"loss": 1.1, "gradient_norm": 3.0}  # of the median


class Diverged(ToolkitError):
    """The run is to stop at numbers that are no good."""

    exit_code = DIVERGED
    kind = "diverged"

    def __init__(self, *problems: Problem | str, remedy: str = "", where: str = "") -> None:
        super().__init__(*problems, remedy=remedy)
        self.where = where  # module and rank, of a value that is not finite


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """``on_nan`` is stop or skip, ``on_spike`` warn, stop or skip."""

    on_nan: str = "stop"
    on_spike: str = "warn"
    window: int = 50  # steps: more of them hide a spike in the fall of the loss
    deviations: float = 6.0
    warmup_steps: int = 0
    skip_batches: int = 1  # of one setback
    most_setbacks: int = 3  # in a row

    @property
    def skips(self) -> bool:
        """Whether the run may go back."""
        return "skip" in (self.on_nan, self.on_spike)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a step."""

    step: int
    kind: str  # nan | spike
    quantity: str  # loss | gradient_norm
    value: float | None = None  # None: not finite
    median: float = 0.0
    limit: float = 0.0

    def __str__(self) -> str:
        name = self.quantity.replace("_", " ")
        if self.value is None:
            return f"step {self.step}: the {name} is not finite"
        return f"step {self.step}: {name} {self.value:.4g}, the median is {self.median:.4g}, the limit {self.limit:.4g}"


class Watch:
    """Looks at one step after another; ``before`` are the steps that the run has made in earlier starts."""

    def __init__(self, rules: Rules, before: Iterable[StepRecord] = ()) -> None:
        self.rules = rules
        self._known: dict[str, deque[tuple[int, float]]] = {name: deque(maxlen=rules.window) for name in LEAST}
        for record in before:
            self._learn(record.step, {"loss": record.loss, "gradient_norm": record.gradient_norm})

    def look(
        self,
        step: int,
        loss: float | None,
        gradient_norm: float | None,
        scale_can_fall: Callable[[], bool] = lambda: False,
    ) -> Finding | None:
        """What is wrong with this step, the worst of it. A norm that is None is not known.

        ``scale_can_fall`` is asked where something is not finite: whether the optimizer leaves the step out and lowers
        its loss scale (fp16).
        """
        values = {"loss": math.nan if loss is None else loss, "gradient_norm": gradient_norm}
        known = {name: value for name, value in values.items() if value is not None}
        found = [Finding(step=step, kind=NAN, quantity=name) for name, value in known.items() if not _finite(value)]
        if not found:
            found = [each for name, value in known.items() if (each := self._spike(step, name, value))]
        elif scale_can_fall():
            found = []
        self._learn(step, values)
        return found[0] if found else None

    def back_to(self, step: int) -> None:
        """The run goes on after this step once more."""
        for values in self._known.values():
            kept = [each for each in values if each[0] <= step]
            values.clear()
            values.extend(kept)

    def _learn(self, step: int, values: dict[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None and _finite(value):
                self._known[name].append((step, value))

    def _spike(self, step: int, name: str, value: float) -> Finding | None:
        values = [each for _, each in self._known[name]]
        if step <= self.rules.warmup_steps or len(values) < min(FEWEST, self.rules.window):
            return None
        median = statistics.median(values)
        spread = MAD_TO_SIGMA * statistics.median(abs(each - median) for each in values)
        limit = max(median + self.rules.deviations * spread, median + (LEAST[name] - 1.0) * abs(median))
        if value <= limit:
            return None
        return Finding(step=step, kind=SPIKE, quantity=name, value=value, median=median, limit=limit)


def _finite(value: float) -> bool:
    return math.isfinite(value)
