"""A training program with a stopwatch beside it: how ``toolkit profile`` runs it, on one device.

    python -m recipes.profiled REPORT.json WARM_UP STEPS recipes.finetune.train --plan plan.json ...

The program is the very one that trains; only its telemetry is listened to, which both programs write at the end of
every optimizer step. ``WARM_UP`` steps are dropped and ``STEPS`` steps are timed with nothing in their way. One step
more is taken apart (forward and backward, update, data, the rest; a GPU is waited for at each border), and in a last
one memory is counted: by ``torch.cuda``'s statistics on a GPU, on processors by the bytes of live tensors. Then the
report is written and the process ends, before a checkpoint is saved.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipes import program
from recipes.held import Memory, parts
from recipes.reading import timed
from toolkit.record import StepRecord
from toolkit.runtime import durable, telemetry

ENGINE = "_execution_engine"  # of torch.autograd.Variable: every backward pass runs through it


class Stopwatch:
    """Seconds by part of the step that runs, and the optimizers that were seen to step."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.optimizers: dict[int, Any] = {}
        self.apart = False  # only then does anything wait for the device
        self.counting = False
        self.clear()

    def clear(self) -> None:
        """A new step begins."""
        self.data = self.passes = self.update = 0.0
        self.gradients_at_update = 0
        self._forward: float | None = None
        self._update = 0.0

    def now(self) -> float:
        """The time, once the device has done what it was given."""
        if self.on_gpu:
            self.torch.cuda.synchronize()
        return time.perf_counter()

    def forward_begins(self, *_: Any) -> None:
        """The first module of a micro-batch is called."""
        if self.apart and self._forward is None and self.torch.is_grad_enabled():
            self._forward = self.now()

    def backward_ended(self) -> None:
        """A micro-batch is over."""
        if self.apart and self._forward is not None:
            self.passes += self.now() - self._forward
            self._forward = None

    def update_begins(self, optimizer: Any, *_: Any) -> None:
        """An optimizer's step is called."""
        self.optimizers[id(optimizer)] = optimizer
        if self.counting and not self.gradients_at_update:
            self.gradients_at_update = parts(self)["gradients_bytes"]
        if self.apart:
            self._update = self.now()

    def update_ended(self, *_: Any) -> None:
        """And has returned."""
        if self.apart:
            self.update += self.now() - self._update

    def fetched(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The same batches; the time to make each counts as data."""
        return timed(iterator, self._has_read)

    def _has_read(self, seconds: float) -> None:
        self.data += seconds


class _Engine:
    """torch's autograd engine, telling the stopwatch when a backward pass has ended."""

    def __init__(self, engine: Any, watch: Stopwatch) -> None:
        self._engine, self._watch = engine, watch

    def run_backward(self, *positional: Any, **keywords: Any) -> Any:
        """The engine's own."""
        result = self._engine.run_backward(*positional, **keywords)
        self._watch.backward_ended()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def attach(watch: Stopwatch) -> None:
    """Listen to modules, the autograd engine, optimizers and the reading of data of this process."""
    import torch
    from torch.optim import optimizer as optimizers
    from torch.utils.data import dataloader

    torch.nn.modules.module.register_module_forward_pre_hook(watch.forward_begins)
    setattr(torch.autograd.Variable, ENGINE, _Engine(getattr(torch.autograd.Variable, ENGINE), watch))
    optimizers.register_optimizer_step_pre_hook(watch.update_begins)  # type: ignore[arg-type]
    optimizers.register_optimizer_step_post_hook(watch.update_ended)  # type: ignore[arg-type]
    following = dataloader._BaseDataLoaderIter.__next__

    def timed(self: Any) -> Any:
        since = time.perf_counter()
        try:
            return following(self)
        finally:
            watch.data += time.perf_counter() - since

    dataloader._BaseDataLoaderIter.__next__ = timed  # type: ignore[method-assign]
    own = sys.modules.get("recipes.pretrain.data")
    if own is not None:  # the pretraining program reads its sequences itself
        batches = own.micro_batches
        own.micro_batches = lambda *positional, **keywords: watch.fetched(batches(*positional, **keywords))  # type: ignore[attr-defined]


class Listener:
    """What is done at the end of each step of the program."""

    def __init__(self, report: Path, warm_up: int, timed: int) -> None:
        self.path, self.warm_up, self.timed = report, warm_up, timed
        self.watch = Stopwatch()
        self.steps: list[dict[str, float]] = []
        self.apart: dict[str, float] = {}
        self.memory: Memory | None = None
        self.count = 0
        attach(self.watch)

    def step(self, record: StepRecord) -> None:
        """A step is over."""
        self.count += 1
        watch, plain = self.watch, self.warm_up + self.timed
        if self.warm_up < self.count <= plain:
            self.steps.append({"seconds": record.seconds, "tokens": record.tokens, "data_seconds": watch.data})
        elif self.count == plain + 1:
            self.apart = {
                "step_seconds": record.seconds,
                "passes_seconds": watch.passes,
                "update_seconds": watch.update,
                "data_seconds": watch.data,
            }
        elif self.memory is not None:
            self.write(self.memory.report())
        watch.clear()
        watch.apart = self.count == plain
        if self.count == plain + 1:
            self.memory = Memory(watch)
            watch.counting = True

    def write(self, memory: dict[str, int]) -> None:
        """All of it; nothing follows that would be measured."""
        torch = self.watch.torch
        found = {
            "device": torch.cuda.get_device_name() if self.watch.on_gpu else processor(),
            "kind": "cuda" if self.watch.on_gpu else "cpu",
            "threads": torch.get_num_threads(),
            "warm_up_steps": self.warm_up,
            "steps": self.steps,
            "apart": self.apart,
            "memory": memory,
        }
        durable.replace(self.path, json.dumps(found).encode())
        program.leave(0)


def processor() -> str:
    """The processor's own name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main(argv: list[str]) -> int:
    """Run the program that is named, listening to its telemetry."""
    report, warm_up, timed, module, *arguments = argv
    begin, step = telemetry.Telemetry.__init__, telemetry.Telemetry.step
    listeners: list[Listener] = []

    def begun(self: telemetry.Telemetry, *positional: Any, **keywords: Any) -> None:
        begin(self, *positional, **keywords)
        listeners.append(Listener(Path(report), int(warm_up), int(timed)))  # the program's own libraries are loaded

    def stepped(self: telemetry.Telemetry, record: StepRecord) -> None:
        step(self, record)
        listeners[-1].step(record)

    telemetry.Telemetry.__init__ = begun  # type: ignore[method-assign]
    telemetry.Telemetry.step = stepped  # type: ignore[method-assign]
    result: int = importlib.import_module(module).main(arguments)
    return result


if __name__ == "__main__":
    program.leave(main(sys.argv[1:]))
