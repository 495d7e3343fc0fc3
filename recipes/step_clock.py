"""Seconds of a step by part (:class:`toolkit.record.StepSeconds`), without making the host wait for the device.

On processors all parts are host time. On GPUs the host only enqueues, so forward-backward and optimizer are measured
between CUDA events on the stream that computes; they are read at the end of the step, when the loss has been read
from the device and all of them are over. ``data`` is host time on both: the device is idle when a step begins, since
the loss of the step before has been read. What is read between micro batches, while the device may still be busy with
the last one, counts as data too: there it is an upper bound of waiting, and forward-backward is shorter by it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from recipes.reading import Item, timed
from toolkit.record import StepSeconds

FORWARD_BACKWARD, OPTIMIZER, OTHER = "forward_backward", "optimizer", "other"


class StepClock:
    """One step after another: ``start``, then ``enter`` for each part in this order, then ``stop``."""

    def __init__(self, gpu: bool = False) -> None:
        self.gpu = gpu
        self.evaluation = 0.0  # seconds since the last step, for the caller to add to
        self.reading = 0.0  # seconds of this step in which batches were read, after its first part
        self._marks: list[tuple[str, float, Any]] = []
        self._since = time.perf_counter()

    def start(self) -> None:
        """A step begins: it waits for data."""
        self._since, self._marks, self.reading = time.perf_counter(), [], 0.0

    def enter(self, part: str) -> None:
        """Another part begins; the first one of a step ends the waiting for data. Entering it again changes nothing."""
        if self._marks and self._marks[-1][0] == part:
            return
        self._marks.append((part, time.perf_counter(), self._event()))

    def reads(self, batches: Iterator[Item]) -> Iterator[Item]:
        """The same batches, and how long each took to read."""
        return timed(batches, self._has_read)

    def _has_read(self, seconds: float) -> None:
        self.reading += seconds

    def stop(self, save: float = 0.0) -> tuple[float, StepSeconds]:
        """Seconds of the step that ends now, whose loss is known, and their parts; evaluations are counted once."""
        total, spent = time.perf_counter() - self._since, {FORWARD_BACKWARD: 0.0, OPTIMIZER: 0.0}
        data = self._marks[0][1] - self._since if self._marks else 0.0
        for (part, began, event), (_, ended, next_event) in zip(self._marks, self._marks[1:], strict=False):
            if part in spent:
                spent[part] += _between(event, next_event) if self.gpu else ended - began
        data, spent[FORWARD_BACKWARD] = data + self.reading, max(0.0, spent[FORWARD_BACKWARD] - self.reading)
        other = max(0.0, total - data - sum(spent.values()))
        parts = StepSeconds(data=data, **spent, other=other, save=save, evaluation=self.evaluation)
        self.evaluation = 0.0
        return total, parts

    def _event(self) -> Any:
        if not self.gpu:
            return None
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _between(first: Any, second: Any) -> float:
    second.synchronize()  # over by now, since the loss has been read: nobody waits
    return float(first.elapsed_time(second)) / 1000.0
