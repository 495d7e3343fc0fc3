"""When and how a pretraining run saves: at once, or while it goes on training (``--async-save``).

Asynchronously megatron-core copies the state to host memory, forks a process per rank that writes it, and asks at
the end of each step whether all ranks' processes are done; only then is the checkpoint committed, in a thread.
The copy is all that training waits for. A run that is killed meanwhile goes on from the checkpoint before.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

from recipes import resume as runs
from recipes.pretrain import checkpoints, random_states
from recipes.pretrain.model import Built
from toolkit.plan import Plan
from toolkit.runtime.saver import Saver


class Saves:
    """The saves of one run; every rank calls the same methods at the same steps."""

    def __init__(self, plan: Plan, folder: Path, built: Built, options: argparse.Namespace) -> None:
        self.plan, self.built = plan, built
        self.saver = Saver(folder, options.keep, options.keep_every, options.async_save, options.durable)
        # not the persistent kind: its process asks for a GPU's number, and Megatron's own checks of it fork as well
        self._queue: Any = AsyncCallsQueue(persistent=False) if options.async_save else None

    def save(self, step: int, facts: dict[str, Any]) -> None:
        """Save the state after ``step``; twice at one step is once."""
        saver = self.saver
        if step == saver.saved_step:
            return
        with saver.stalling():
            self._finish_writing()
            target = saver.begin(step)
            known = runs.facts(self.plan) | {"step": step} | facts
            request = checkpoints.write(self.plan, target, self.built, step, self._queue is not None)
            random_states.save(target, torch.distributed.get_rank())
            if request is None:
                saver.commit(target, known)
            else:
                request.add_finalize_fn(lambda: saver.commit(target, known))
                self._queue.schedule_async_request(request)

    def after_step(self) -> float:
        """Commit what all ranks have written by now; for how long saves have held this and earlier steps up, once."""
        if self._queue is not None:
            with self.saver.stalling():
                self._queue.maybe_finalize_async_calls(blocking=False)
        return self.saver.take_stall_seconds()

    def wait(self) -> None:
        """Until nothing is being saved."""
        with self.saver.stalling():
            self._finish_writing()
            self.saver.wait()

    def close(self, goes_on: bool) -> None:
        """The start ends here: until all is saved, also in durable storage."""
        with self.saver.stalling():
            self._finish_writing()
            self.saver.close(goes_on)

    def _finish_writing(self) -> None:
        if self._queue is not None:
            self._queue.maybe_finalize_async_calls(blocking=True)
