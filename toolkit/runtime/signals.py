"""Stopping on request: every rank saves at the same step, then leaves with an exit code of its own.

A request is SIGUSR1, SIGUSR2, SIGTERM, SIGINT or SIGHUP to any rank (a scheduler's warning before the time limit,
preemption, Ctrl-C, a terminal that closes, unless ``nohup`` has it ignored), or a file named ``STOP`` in the output
directory. The file is the way that does not depend on a launcher: ``torchrun`` passes on only the signals in
``--signals-to-handle``, and kills its workers ``--shutdown-timeout`` seconds (30 unless set) after it has passed one
on, saved or not.

Signals reach the ranks at different steps. A rank that saved and left alone would leave the others
waiting in a collective, so the request is agreed on: at the end of each step, evaluation and save all ranks
reduce one number, and all see the request at the same step. In an evaluation they do so before each batch, and the
next start makes it; in what follows the last evaluation, the writing of the result, nobody looks. A rank 0 whose
output directory has been taken by another job (it had slept) ends all at that point too, without a save.

Before the first step there is nothing to save and no common point to agree at: one rank may be preparing
data while the others wait for it for an hour. There a request makes each rank leave at once, from a thread
that notices the signal although the main thread is in a collective (``signal.set_wakeup_fd``). A rank that
leaves so tells the others by a file of this start, since it may be the only one that was asked, and torchrun on another
node would take its end for a success. The thread also sees that torchrun has died, which would leave its workers behind
as orphans.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.runtime import faults, lease, outcome
from toolkit.runtime.outcome import Presence

# Exit code of a process that stopped because it was asked to, with its checkpoint saved: "try again"
# (EX_TEMPFAIL of sysexits.h).
STOPPED = 75

STOP_FILE = "STOP"
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOST = 2  # what the ranks reduce: 1 is a request
LOOK_SECONDS = 1.0  # between looks at the file and at the parent, in the thread


class StopRequest:
    """Remembers that someone asked this process to stop; a context manager that handles the signals.

    ``reason`` is empty until then, and afterwards names the signal or the file. Only rank 0 looks at
    the file, once per step. Before the first every rank does, every ``LOOK_SECONDS``: those that wait for one that has
    left would not know why.
    """

    def __init__(self, directory: str | Path, rank: int = 0, presence: Presence | None = None) -> None:
        self.reason = ""
        self.rank = rank
        self.begun = False  # whether the ranks have met at the end of a step
        self.stopped = False  # whether they have agreed to stop
        self.stop_file = Path(directory) / STOP_FILE
        self.presence = presence or Presence(directory, rank)
        self._left = (
            self.presence.words.with_name(STOP_FILE) if self.presence.words else None
        )  # a rank of this start has
        self._before: dict[signal.Signals, Any] = {}
        self._interrupts = 0
        self._ends: tuple[int, int] | None = None
        self._wakeup_before = -1
        self._thread: threading.Thread | None = None
        self._old = _stamp(self.stop_file)
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else 0

    def __enter__(self) -> StopRequest:
        # a request to an earlier start is not one to this start; a job script removes it before its ranks start
        if self.rank == 0 and not self.presence.name:
            self.stop_file.unlink(missing_ok=True)
        self._ends = os.pipe()
        os.set_blocking(self._ends[1], False)
        self._wakeup_before = signal.set_wakeup_fd(self._ends[1], warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                self._before[number] = signal.signal(number, self._handle)
        _entered.add(self)
        self._thread = threading.Thread(target=self._listen, args=(self._ends[0],), name="stop-request", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if self._ends is not None:
            os.close(self._ends[1])  # the thread reads the end of the pipe, and closes the other
            self._ends = None
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)

    def _restore(self) -> None:
        _entered.discard(self)
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or signal.Signals(number).name
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1 and not self._parent:  # a second Ctrl-C, which torchrun would not pass on
            raise KeyboardInterrupt

    def _listen(self, end: int) -> None:
        """The thread: signals as they arrive, and before the first step the file and the parent too."""
        while True:
            ready, _, _ = select.select([end], [], [], LOOK_SECONDS)
            if ready:
                numbers = os.read(end, 64)
                if not numbers:
                    os.close(end)
                    return
                for number in numbers:
                    if number in SIGNALS:
                        self.reason = self.reason or signal.Signals(number).name
                        self.presence.say(f"asked {signal.Signals(number).name}")
            elif not self.begun and self._file_asks():
                self.reason = self.reason or f"the file {self.stop_file}"
            if self.reason and not self.begun:
                self._leave_now()
            if not self.begun and lease.is_lost(self.stop_file.parent):
                with contextlib.suppress(OSError, ValueError):
                    print(f"error: {self._lost()}", file=sys.stderr, flush=True)
                os._exit(ToolkitError.exit_code)
            if self._parent and os.getppid() != self._parent:
                self.presence.failed("agent", f"torchrun (process {self._parent}) is gone")
                os._exit(1)

    def _file_asks(self) -> bool:
        """Whether there is a file for this start. A job script, or else rank 0, has removed an earlier start's; without
        a job script the others know it.
        """
        if self._left is not None and _stamp(self._left) is not None:
            return True
        found = _stamp(self.stop_file)  # an age would be by two clocks, the file server's and the node's
        return found is not None and (self.rank == 0 or bool(self.presence.name) or found != self._old)

    def _leave_now(self) -> None:
        """Before the first step: nothing is lost."""
        self.presence.left("stopped", stopped_exit_code(), self.reason)
        if self._left is not None:
            with contextlib.suppress(OSError):
                self._left.touch()
        if os.environ.get("LOCAL_RANK", "0") == "0":  # once on each node
            with contextlib.suppress(OSError, ValueError):  # nobody may read any more
                print(f"stopped before the first step ({self.reason}): nothing is lost", flush=True)
        os._exit(stopped_exit_code())

    def agreed(self, device: Any = "cpu", step: int = 0) -> bool:
        """Whether any rank has been asked to stop; every rank must call this at the same step.

        ``device`` is where the process group's backend keeps its tensors; ``step`` the last one that is done. Raises
        ToolkitError on every rank where another job has the output directory by now.
        """
        self.begun = True
        if self.stopped:
            return True
        self.presence.step = step
        if self.rank == 0 and not self.reason and _stamp(self.stop_file) is not None:
            self.reason = f"the file {self.stop_file}"
        wanted = LOST if lease.is_lost(self.stop_file.parent) else int(bool(self.reason))
        distributed = sys.modules.get("torch.distributed")  # not imported: there is no process group
        if distributed and distributed.is_available() and distributed.is_initialized():
            asked = sys.modules["torch"].tensor(wanted, device=device)
            distributed.all_reduce(asked, op=distributed.ReduceOp.MAX)
            wanted = int(asked.item())
        if wanted == LOST:
            raise self._lost()
        if wanted and not self.reason:
            self.reason = "another rank"
        self.stopped = bool(wanted)
        return self.stopped

    def _lost(self) -> ToolkitError:
        """The job script reads from the words of a rank that it must not start again."""
        error = lease.taken(self.stop_file.parent)
        self.presence.say(f"refused {error.problems[0].message}")
        return error


def _stamp(path: Path) -> tuple[int, int] | None:
    """Inode and time of change of a file, another one where it has been made or touched anew; None where it is not.

    Also None where the file system refuses: of the millions of looks of a run one that fails must not end it.
    """
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


@contextmanager
def attended(directory: str | Path, rank: int) -> Iterator[StopRequest]:
    """A whole start of a rank: it says that it is here, handles requests, and tells how it ended."""
    presence = Presence(directory, rank)
    presence.here()
    with StopRequest(directory, rank, presence) as stop:
        try:
            with presence.watched():
                yield stop
        except BaseException as error:
            # the others have left because they were asked to, as this rank was: no failure, and nothing is lost
            if stop.reason and not stop.begun and faults.kind(error) == "peer":
                stop._leave_now()
            raise
        if outcome.is_finished(directory):
            presence.left("finished", 0)
        elif stop.stopped:
            presence.left("stopped", stopped_exit_code(), stop.reason)
        else:
            presence.left("ended", 0)


def stopped_exit_code() -> int:
    """0 under torchrun, else 75.

    torchrun takes any other code than 0 for a crash: it ends the other workers, which may still be leaving,
    and reports 1. Job scripts therefore look at ``FINISHED`` and ``outcome.json``, not at the code.
    """
    return 0 if "TORCHELASTIC_RUN_ID" in os.environ else STOPPED


_entered: weakref.WeakSet[StopRequest] = weakref.WeakSet()


def _in_a_fork() -> None:
    """A loader's process that is ended by SIGTERM must not look like a request to its parent, whose pipe it shares."""
    for stop in list(_entered):
        handled = list(stop._before)
        stop._restore()
        for number in handled:
            # Ctrl-C reaches all processes of a terminal: the parent decides what becomes of this one
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


os.register_at_fork(after_in_child=_in_a_fork)
