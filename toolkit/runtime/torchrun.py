"""torchrun whose end tells what became of the run: exit code and last words follow ``outcome.json``.

    python3 -m toolkit.runtime.torchrun OUTPUT_DIR [arguments of torchrun ...]

torchrun makes exit code 1 and a traceback of its own of every end but success: of a stop that was asked for, of inputs
that the program refused, of an exception that the program has just shown. This runs the same launcher
(``torch.distributed.run``, torch 2.13) in this process, so that who kills it kills torchrun, and keeps its words back
where the reason is known: the program has told it, or a signal killed a process, which cannot tell and is named here,
and in ``outcome.json`` in place of what the others saw of it. Where nothing is known, they stay.

====  ==============================================================================================
code  means
====  ==============================================================================================
0     finished, or ended at ``--max-steps``
75    stopped on request, with a checkpoint saved or before the first step: the same command goes on
2     the inputs were refused
77    the watchdog ended a hang
78    a loss or gradient norm was not finite, or spiked, and the run was to stop there
1     anything else
====  ==============================================================================================

In a job of Slurm (``TOOLKIT_ATTEMPT`` is set) srun ends all tasks once one has ended with another code than 0, also
those that are still leaving: there a stop that all have seen ends with 0, as torchrun's does, and what became of the
run is the job script's to tell, once for all nodes.

SIGTERM, SIGINT (Ctrl-C), SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 ask to stop; ``nohup`` keeps SIGHUP ignored. One request
is passed on to the processes; others change nothing, but for a third Ctrl-C, which ends at once.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":  # at once: on a busy machine the imports below take seconds, and torch's many
    for _each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(_each, lambda *_: (os.write(2, b"stopped before the start: nothing is lost\n"), os._exit(75)))

import logging  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from types import FrameType  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from toolkit.runtime import killed, native_log, outcome, screen  # noqa: E402
from toolkit.runtime.divergence import DIVERGED  # noqa: E402
from toolkit.runtime.faults import WITNESSES  # noqa: E402
from toolkit.runtime.hang import HUNG  # noqa: E402
from toolkit.runtime.outcome import Outcome  # noqa: E402
from toolkit.runtime.signals import STOPPED  # noqa: E402

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

REFUSED = 2  # exit code of the programs for inputs that cannot be right, which they have told
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
AT_ONCE = 3  # the Ctrl-C that no longer waits
DEFAULTS = "PET_"  # what a shell carries of torch's launcher, which takes it for what no argument says
GOES_ON = "the same command goes on from the newest checkpoint"
NOISE = (
    *("Sending process", "failed (exitcode", "Received %s death signal", "Got termination signal"),
    "Unable to shutdown process",  # one that was stopped, of which a hang has told
    *("The node '", "Error waiting on exit barrier"),  # a launcher that leaves first takes the meeting point along
)
NOISY = (
    *("torch.distributed.elastic.multiprocessing.api", "torch.distributed.elastic.agent.server.api"),
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
)


class Requests:
    """Requests to stop, from the first moment on: torchrun's own handlers come seconds later, with the workers."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.raised: type[Any] | None = None  # SignalException of torch, once there may be workers
        self._interrupts = 0

    def listen(self) -> None:
        """Handle them all, but for a SIGHUP that is ignored."""
        for number in REQUESTS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.handle)

    def handled(self) -> str:
        """For ``--signals-to-handle``."""
        return ",".join(each.name for each in REQUESTS if signal.getsignal(each) == self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first one ends the launcher's waiting, by the exception that it knows."""
        self._interrupts += number == signal.SIGINT
        if self.first is not None:
            if self._interrupts >= AT_ONCE:
                os._exit(128 + number)  # the workers see that their parent is gone
            if self._interrupts == AT_ONCE - 1:
                _say("still stopping: the step ends and is saved; Ctrl-C once more ends it without")
            return
        self.first = signal.Signals(number)
        if self.raised is None:
            _say(f"stopped before the start ({self.first.name}): nothing is lost")
            os._exit(STOPPED)
        # the workers know these two from every version on, and a third one is no request to them
        passed = self.first if self.first in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT) else signal.SIGTERM
        raise self.raised(f"{self.first.name}", sigval=passed)


class Held(logging.Filter):
    """Keeps back what torchrun logs of each end of a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        for name in NOISY:
            logging.getLogger(name).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """False for what is kept back."""
        kept = str(record.msg).startswith(NOISE)
        if kept:
            self.records.append(record)
        return not kept

    def release(self) -> None:
        """Log it after all."""
        for name in NOISY:
            logging.getLogger(name).removeFilter(self)
        for record in self.records:
            logging.getLogger(record.name).handle(record)


def main(argv: list[str]) -> int:
    """Run torchrun with ``argv[1:]`` for the run that writes into ``argv[0]``; returns the exit code."""
    requests = Requests()
    requests.listen()
    screen.keep()
    folder, *words = argv
    native_log.errors_only()
    for name in [name for name in os.environ if name.startswith(DEFAULTS)]:
        del os.environ[name]
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException, api
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    launcher: Any = run  # without type hints
    options = launcher.parse_args(words)
    options.signals_to_handle = requests.handled()
    held, failed = Held(), None
    vars(api)["_terminate_process_handler"] = requests.handle  # which it installs as it starts the workers
    with tempfile.TemporaryDirectory(prefix="torchrun-", ignore_cleanup_errors=True) as temporary:
        options.log_dir = options.log_dir or temporary  # else each start leaves a folder behind
        requests.raised = SignalException
        try:
            launcher.run(options)
        except SignalException:
            pass
        except ChildFailedError as error:
            failed = error
    found = _of_this_start(folder, options.rdzv_id)
    if found is None or found.kind in WITNESSES:
        found = _of_the_ranks(failed) or found
    if failed is not None and _cannot_tell(found, failed):
        named = killed.by_signal(failed.failures, found)
        ended = requests.first is not None and named is not None and "SIGTERM" in named.reason  # as this process was
        if named is not None and not ended:
            outcome.replace(folder, named, _attempt(options.rdzv_id))
            _say(f"error: {killed.in_words(failed.failures, named)}{_goes_on()}")
            return 1
    return _ended(found, failed, requests, held, folder)


def _cannot_tell(found: Outcome | None, failed: ChildFailedError) -> bool:
    """Whether no rank has told a reason of its own, by word or exit code."""
    told = any(each.exitcode in (REFUSED, HUNG, DIVERGED) for each in failed.failures.values())
    return not told and (found is None or (found.state == "failed" and found.kind in WITNESSES))


def _in_a_job() -> bool:
    """Whether a job script looks at how this start ends, and tells."""
    return bool(os.environ.get(outcome.ATTEMPT_VARIABLE))


def _goes_on() -> str:
    return "" if _in_a_job() else f"\n  {GOES_ON}"


def _attempt(attempt: object) -> str:
    """The name of this start, as the ranks have it."""
    return os.environ.get(outcome.ATTEMPT_VARIABLE) or str(attempt)


def _of_this_start(folder: str, attempt: object) -> Outcome | None:
    """What the program wrote; nothing that an earlier start or another run in that folder has written."""
    found = outcome.read(folder)
    return found if found is not None and found.attempt == _attempt(attempt) else None


def _of_the_ranks(failed: ChildFailedError | None) -> Outcome | None:
    """What the ranks of this machine told torchrun, where nothing could be written to the output: the cause, if any."""
    told = [outcome.told_to_torchrun(each.error_file_data) for each in failed.failures.values()] if failed else []
    known = [each for each in told if each is not None]
    return min(known, key=lambda each: each.kind in WITNESSES, default=None)


def _ended(
    found: Outcome | None, failed: ChildFailedError | None, requests: Requests, held: Held, folder: str = ""
) -> int:
    """The exit code, and the last words where the program has not said them itself."""
    state, kind = (found.state, found.kind) if found is not None else ("", "")
    if state in ("finished", "ended"):
        return 0
    if state == "stopped":
        return 0 if _in_a_job() else STOPPED
    if found is not None and state == "failed" and kind not in WITNESSES:
        told = kind in ("input", "diverged") or (found.told and found.node == killed.node())
        if not told and not _in_a_job():
            _say(f"error: rank {found.rank} on {found.node}, after step {found.step}: {found.reason}")
        return {"input": REFUSED, "hang": HUNG, "diverged": DIVERGED}.get(kind, 1)
    if failed is None and requests.first is None:
        return 0
    if failed is None and requests.first is not None and found is None:
        if _has_begun(folder):
            return 0
        _say(f"stopped ({requests.first.name}) before anything was saved of this start; the same command starts again")
        return STOPPED
    code = failed.get_first_failure()[1].exitcode if failed is not None else 1
    if code in (REFUSED, HUNG, DIVERGED):
        return code
    if _in_a_job() and failed is None and requests.first is not None:
        return 1  # srun has ended this task after another one's failure
    held.release()
    if failed is not None:
        _say(str(failed).strip())
    if _in_a_job():
        return 1
    if found is not None:
        _say(f"error: rank {found.rank} on {found.node}, after step {found.step}: {found.reason}")
    _say(f"  {GOES_ON}")
    return 1


def _has_begun(folder: str) -> bool:
    """Whether ranks of this job's start have: rank 0, perhaps on another node, tells how it ended."""
    name = os.environ.get(outcome.ATTEMPT_VARIABLE)
    return bool(name) and any((Path(folder) / outcome.ATTEMPTS / str(name)).glob("[0-9]*"))


def _say(text: str) -> None:
    """One write: also called from a handler, where a buffered stream may be in use."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        return


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(ended)  # while Python shuts down, a signal would end it with another code
