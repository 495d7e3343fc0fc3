"""Stopping on request: every rank saves at the same step, then leaves with an exit code of its own.

A request is SIGUSR1 or SIGTERM to any rank (a scheduler's warning before the time limit, or
preemption), or a file named ``STOP`` in the output directory. The file is the way that does not depend
on a launcher: ``torchrun`` passes on only the signals in ``--signals-to-handle``, and kills its workers
``--shutdown-timeout`` seconds (30 unless set) after it has passed one on, saved or not.

Signals reach the ranks at different steps. A rank that saved and left alone would leave the others
waiting in a collective, so the request is agreed on: at the end of each step all ranks reduce one
number, and all see the request at the same step.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

# Exit code of a process that stopped because it was asked to, with its checkpoint saved: "try again"
# (EX_TEMPFAIL of sysexits.h).
STOPPED = 75

STOP_FILE = "STOP"
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class StopRequest:
    """Remembers that someone asked this process to stop; a context manager that handles the signals.

    ``reason`` is empty until then, and afterwards names the signal or the file. Only rank 0 looks at
    the file, once per step.
    """

    def __init__(self, directory: str | Path, rank: int = 0) -> None:
        self.reason = ""
        self.rank = rank
        self.stop_file = Path(directory) / STOP_FILE
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if self.rank == 0:
            self.stop_file.unlink(missing_ok=True)  # a request to an earlier start is not one to this start
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name

    def agreed(self, device: Any = "cpu") -> bool:
        """Whether any rank has been asked to stop; every rank must call this at the same step.

        ``device`` is where the process group's backend keeps its tensors.
        """
        if self.rank == 0 and not self.reason and self.stop_file.exists():
            self.reason = f"the file {self.stop_file}"
        distributed = sys.modules.get("torch.distributed")  # not imported: there is no process group
        if distributed and distributed.is_available() and distributed.is_initialized():
            asked = sys.modules["torch"].tensor(int(bool(self.reason)), device=device)
            distributed.all_reduce(asked, op=distributed.ReduceOp.MAX)
            if asked.item() and not self.reason:
                self.reason = "another rank"
        return bool(self.reason)


def stopped_exit_code() -> int:
    """0 under torchrun, else 75.

    torchrun takes any other code than 0 for a crash: it starts the workers again where restarts are
    allowed, against the request, and reports 1 where not. Job scripts therefore look for the marker of
    a finished run, not at the code.
    """
    return 0 if "TORCHELASTIC_RUN_ID" in os.environ else STOPPED
