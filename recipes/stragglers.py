"""Each rank's own seconds, step by step, and what the ranks tell one another of them once per window.

``data`` is reading its batches; ``forward`` the forward passes of its model, where these hold no collective (not under
ZeRO-3, FSDP, tensor, context or expert parallelism, or with parameters gathered meanwhile). Where they do, all ranks
take as long as the slowest, and a fixed product of matrices is timed instead, once per window (``products``): it tells
a device that is slow, whatever the cause. On GPUs forward passes are timed by events, read after the loss has been.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from recipes.reading import Item, timed
from toolkit.record import EventRecord
from toolkit.runtime.stragglers import DATA, FORWARD, PRODUCTS, Rules, Stragglers, Told
from toolkit.runtime.telemetry import Telemetry
from toolkit.runtime.together import Group

REPEATS = 5  # of the product; the fastest counts
SIZES = {"cpu": (384, "float32"), "cuda": (4096, "bfloat16")}  # 0.1 and 137 GFLOP


def rules(options: argparse.Namespace) -> Rules:
    """What was asked for."""
    return Rules(every=options.straggler_every, factor=options.straggler_factor, windows=options.straggler_windows)


class OwnSeconds:
    """What one rank has spent by itself since the last window."""

    def __init__(self, gpu: bool) -> None:
        self.gpu = gpu
        self.data = 0.0
        self._forward = 0.0
        self._began: Any = None
        self._events: list[tuple[Any, Any]] = []

    def reads(self, batches: Iterator[Item]) -> Iterator[Item]:
        """The same batches; reading them is this rank's own."""
        return timed(batches, self._has_read)

    def _has_read(self, seconds: float) -> None:
        self.data += seconds

    def begin_forward(self, *_: Any) -> None:
        """A forward pass begins; also a hook of a module."""
        self._began = self._now()

    def end_forward(self, *_: Any) -> None:
        """It ends, or on GPUs all of it has been enqueued."""
        if self._began is None:
            return
        if self.gpu:
            self._events.append((self._began, self._now()))
        else:
            self._forward += self._now() - self._began
        self._began = None

    def take_forward(self) -> float:
        """Of the step that has ended, whose loss has been read."""
        for first, last in self._events:
            last.synchronize()
            self._forward += first.elapsed_time(last) / 1000.0
        found, self._forward = self._forward, 0.0
        self._events.clear()
        return found

    def _now(self) -> Any:
        if not self.gpu:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class StragglerWatch:
    """One for a rank; ``own`` is for the program to fill."""

    def __init__(
        self, rules: Rules, group: Group, telemetry: Telemetry, say: Any, device: str, work: int, apart: bool
    ) -> None:
        self.rules, self.group, self.telemetry, self.say = rules, group, telemetry, say
        self.device, self.work = device, work
        self.apart = apart  # whether forward passes hold no collective
        self.own = OwnSeconds(device == "cuda")
        self._known = Stragglers(rules)
        self._steps, self._sums = 0, dict.fromkeys((DATA, FORWARD, "step"), 0.0)

    def step(self, step: int, seconds: float) -> None:
        """A step has ended after so many seconds; every rank calls it, and some steps end a window."""
        forward, data, self.own.data = self.own.take_forward(), self.own.data, 0.0
        if not self.rules.every or self.group.size == 1:
            return
        for name, spent in ((DATA, data), (FORWARD, forward), ("step", seconds)):
            self._sums[name] += spent
        self._steps += 1
        if step % self.rules.every == 0:
            self._window(step)

    def _window(self, step: int) -> None:
        means = {name: total / self._steps for name, total in self._sums.items()}
        sections = {DATA: means[DATA]}
        sections |= {FORWARD: means[FORWARD]} if self.apart else {PRODUCTS: product_seconds(self.device)}
        mine = Told(work=self.work, step_seconds=means["step"], sections=sections)
        for slow in self._known.window(self.group.share(mine)):
            host = self.group.hosts[slow.rank]
            text = (
                f"rank {slow.rank} on {host} falls behind: {slow.section} takes it {slow.seconds:.3g} s"
                f"{'' if slow.section == PRODUCTS else ' a step'}, the others {slow.others:.3g} s (median), in"
                f" {self.rules.windows} windows of {self.rules.every} steps"
            )
            self.say(f"warning: {text}", flush=True)
            self.telemetry.event(
                EventRecord(
                    kind="straggler",
                    step=step,
                    text=text,
                    action="warn",
                    quantity=slow.section,
                    value=slow.seconds,
                    limit=self.rules.factor * slow.others,
                    rank=slow.rank,
                    host=host,
                )
            )
        self._steps, self._sums = 0, dict.fromkeys(self._sums, 0.0)


def product_seconds(device: str) -> float:
    """Seconds of one product of two square matrices, the fastest of several."""
    import torch

    size, dtype = SIZES[device]
    matrix = torch.ones(size, size, dtype=getattr(torch, dtype), device=device)
    found = []
    for _ in range(REPEATS):
        if device == "cuda":
            torch.cuda.synchronize()
        since = time.perf_counter()
        torch.mm(matrix, matrix)
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - since)
    return min(found)
