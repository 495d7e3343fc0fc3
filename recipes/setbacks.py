"""What both programs do at a loss that is not finite, or spikes: go on, stop, or go back and leave its batch out.

The rule is :mod:`toolkit.runtime.divergence`, the list of what is left out :mod:`toolkit.runtime.skipped`. All ranks
judge a step from values that are the same on all, and then agree on the worst verdict of any, so that none goes back
alone. Going back is done by the process as it is: states are loaded again, and nothing is built or started anew.

    1  the list, with the batches that are left out from now on, is brought to the disk
    2  checkpoints newer than the one to go back to are deleted
    3  the program loads that one and goes on with the step after it

A kill between any two of them leaves a run that the same command goes on with in the same way. The first setback goes
back to the newest valid checkpoint. One more before another checkpoint has been made after the bad step goes back one
checkpoint further, where there is one: that state may have been bad already. ``--setbacks`` of them end the run.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from recipes import ranks
from toolkit.record import EventRecord, StepRecord
from toolkit.runtime import checkpoint, skipped
from toolkit.runtime.divergence import NAN, SPIKE, Diverged, Finding, Rules, Watch
from toolkit.runtime.skipped import Setback
from toolkit.runtime.telemetry import Telemetry, last_steps
from toolkit.runtime.together import Group

TOLD = 4  # micro batches whose loss is not finite
VERDICTS = ("", "warn", "skip", "stop")  # the worst of all ranks holds


def rules(options: argparse.Namespace, warmup_steps: int = 0) -> Rules:
    """What was asked for."""
    return Rules(
        on_nan=options.on_nan,
        on_spike=options.on_spike,
        window=options.spike_window,
        deviations=options.spike_deviations,
        warmup_steps=warmup_steps,
        skip_batches=options.skip_batches,
        most_setbacks=options.setbacks,
    )


def known_steps(folder: Path, options: argparse.Namespace, start: int) -> list[StepRecord]:
    """The last steps before a start that goes on after step ``start``: more than the watch and the jump look at.

    Of a long run not all: each rank of a node would hold gigabytes of them. Some have no finite value to learn from.
    """
    return last_steps(folder, start, max(10_000, 20 * options.spike_window))


class Share(NamedTuple):
    """What a rank reads of a batch: micro batches of ``size`` samples, number ``replica`` of ``replicas`` in turn."""

    replica: int
    replicas: int
    size: int


class Setbacks:
    """One for a start of a rank. ``batches`` is what the run leaves out now, ``pending`` why it is to go back."""

    def __init__(
        self,
        rules: Rules,
        folder: Path,
        global_batch: int,
        before: list[StepRecord],
        telemetry: Telemetry,
        device: Any,
        say: Any,
        group: Group,
        share: Share,
    ) -> None:
        self.rules, self.folder, self.global_batch = rules, folder, global_batch
        self.telemetry, self.device, self.say, self.group, self.share = telemetry, device, say, group, share
        self.listed = ranks.shared(lambda: skipped.read(folder), self.group)
        self.watch = Watch(rules, before)
        self.pending: Finding | None = None
        self.came_from = ""  # of it, as far as that is known
        self.origin: Callable[[], str] | None = None  # what tells the module; all ranks call it, with the same weights
        self.losses: list[Any] = []  # of the micro batches of the step on this rank, in their order, on its device
        self._note()

    @property
    def batches(self) -> tuple[int, ...]:
        """Left out, in ascending order."""
        return self.listed.batches

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint and the marker of a finished run tell of it."""
        return {skipped.FACT: list(self.batches)} if self.batches else {}

    @property
    def summary(self) -> str:
        """For the last line of a run."""
        if not self.batches:
            return ""
        many = f"{len(self.batches)} batches" if len(self.batches) > 1 else "batch"
        return f"; {many} left out: {', '.join(map(str, self.batches))} ({skipped.SKIPPED})"

    def next_sample(self, step: int) -> int:
        """Where the data stand after this step."""
        return skipped.batch_of(step, self.batches) * self.global_batch

    def look(
        self, step: int, loss: float | None, gradient_norm: float | None, scale_can_fall: Callable[[], bool]
    ) -> bool:
        """Whether the run is to go back now; raises Diverged on every rank where it is to stop. All ranks call it."""
        found = self.watch.look(step, loss, gradient_norm, scale_can_fall)
        verdict = self._agreed(self._verdict(found))
        losses, self.losses = self.losses, []
        if not verdict:
            return False
        found = found or Finding(step=step, kind=NAN, quantity="loss")  # another rank's
        where = self.came_from = self._origin(found)
        told = f"{found}; {self._where(found.step, losses)}" + (f"; {where}" if where else "")
        self.telemetry.event(
            EventRecord(
                kind=found.kind,
                step=step,
                text=told,
                action=verdict,
                quantity=found.quantity,
                value=found.value,
                limit=found.limit or None,
                where=where,
            )
        )
        if verdict == "warn":
            self.say(f"warning: {told}", flush=True)
            return False
        if verdict == "stop":
            raise Diverged(
                told,
                where=where,
                remedy="the same batch would do it again: look at it, lower the learning rate, or give"
                f" --on-{found.kind} skip to leave it out and go on from the newest checkpoint",
            )
        self.say(f"warning: {told}", flush=True)
        self.pending = found
        return True

    def go_back(self) -> None:
        """Steps 1 and 2, all ranks together and with nothing being saved; the program then looks for its checkpoint."""
        assert self.pending is not None
        found, self.pending = self.pending, None
        whole = self.group.share(checkpoint.complete(self.folder) if self.group.rank == 0 else None)[0]
        sound: list[tuple[Path, int]] = []  # the newest first, as many as are asked for
        before = 0
        for path in reversed(whole):
            step = int(checkpoint.facts(path)["step"])
            if step < found.step and not any(each.fatal for each in checkpoint.verify(path, self.group)):
                before = before if sound else self.listed.in_a_row(step)
                sound.append((path, step))
                if len(sound) > before:
                    break
        if not sound:
            raise Diverged(
                f"{found}, and {self.folder} holds no valid checkpoint before it",
                where=self.came_from,
                remedy="start anew, or without skip",
            )
        if before >= self.rules.most_setbacks:
            raise Diverged(
                f"{found}, and the run has gone back {before} times without coming further than that",
                where=self.came_from,
                remedy="another batch does not help: lower the learning rate, which is another experiment",
            )
        target, back_to = sound[-1]
        setback = Setback(
            step=found.step,
            kind=found.kind,
            quantity=found.quantity,
            value=found.value,
            batches=self._left_out(found.step, back_to),
            back_to=back_to,
            at=round(time.time(), 3),
        )
        self.listed = self.listed.after(setback)
        ranks.everywhere(lambda: self._write(whole[whole.index(target) + 1 :]), self.group)
        self.watch.back_to(setback.back_to)
        self._note()
        text = f"back to step {setback.back_to}, without batch {', '.join(map(str, setback.batches))}"
        self.telemetry.event(EventRecord(kind="setback", step=found.step, action="skip", text=text))
        self.say(f"{text} (samples {self._samples(setback.batches)}); {skipped.SKIPPED} lists all", flush=True)

    def _write(self, newer: list[Path]) -> None:
        if self.group.rank == 0:
            skipped.write(self.folder, self.listed)
            skipped.discard(self.folder, newer)

    def _left_out(self, step: int, back_to: int) -> tuple[int, ...]:
        """``--skip-batches`` of them, the bad one in their middle, of those that are read after the checkpoint."""
        first = max(back_to + 1, step - self.rules.skip_batches // 2)
        places = range(first - 1, first - 1 + self.rules.skip_batches)
        return tuple(skipped.batch_of(place, self.batches) for place in places)

    def _verdict(self, found: Finding | None) -> str:
        if found is None:
            return ""
        return self.rules.on_nan if found.kind == NAN else self.rules.on_spike if found.kind == SPIKE else ""

    def _agreed(self, mine: str) -> str:
        if not ranks.several():
            return mine
        import torch

        worst = torch.tensor(VERDICTS.index(mine), device=self.device)
        torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MAX)
        return VERDICTS[int(worst)]

    def _origin(self, found: Finding) -> str:
        """Of a value that is not finite the module; empty for a spike. All ranks call it."""
        if self.origin is None or not any(self.group.share(found.kind == NAN)):
            return ""
        self.say(f"{found}: the batch is run once more to find the module", flush=True)
        return self.origin()

    def _where(self, step: int, losses: list[Any]) -> str:
        """The batch, and of micro batches whose own loss is not finite the samples, with ranks and hosts."""
        batch = skipped.batch_of(step - 1, self.batches)
        bad = [number for number, loss in enumerate(losses) if not math.isfinite(float(loss))]
        places: dict[tuple[int, int], list[str]] = {}  # of the first sample and the one after the last
        for rank, (share, numbers) in enumerate(self.group.share((self.share, bad))):
            for number in numbers:
                first = batch * self.global_batch + (number * share.replicas + share.replica) * share.size
                places.setdefault((first, first + share.size), []).append(f"{rank} on {self.group.hosts[rank]}")
        text = f"batch {batch}, samples {self._samples((batch,))}"
        for (first, end), who in sorted(places.items())[:TOLD]:
            text += f"; not finite already in samples {first} to {end - 1} (rank {', '.join(who)})"
        return text + (f"; and in {len(places) - TOLD} more micro batches" if len(places) > TOLD else "")

    def _samples(self, batches: tuple[int, ...]) -> str:
        return ", ".join(f"{b * self.global_batch} to {(b + 1) * self.global_batch - 1}" for b in batches)

    def _note(self) -> None:
        self.telemetry.skipped(self.batches)
