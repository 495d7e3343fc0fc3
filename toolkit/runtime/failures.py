"""The traceback of a rank that fails: shown once where the code is to blame, and in a file in every case.

Of several ranks that fail one is the cause and the others have merely lost it, or all have met the same. What a person
needs is the cause. So a witness says nothing where the cause is known, else one line; of ranks that met the same one
shows its traceback. Each traceback is in ``stacks/error-rank-N.txt`` of the output directory, with the start's name.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.runtime import faults, holder, outcome
from toolkit.runtime.hang import FOLDER
from toolkit.runtime.outcome import Outcome, Presence

LONGEST = 160  # characters of an error in a line
PATIENCE = 1.0  # seconds in which the cause, which fails as well, tells of itself


class Told(Exception):
    """A failure about which all has been said; its cause is the error itself."""

    exit_code = 1


class Failure:
    """Of one rank: ``kept`` inside, where signals still are requests, ``told`` outside, once the outcome is written."""

    def __init__(self, folder: str | Path, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank
        self.path = Path("(not written)")

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, the traceback of an exception is written down; of a ToolkitError that of the library that met it."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # of torch's distributed checkpoints
            if not isinstance(error, ToolkitError) or error.__cause__ is not None:
                self.path = write(self.folder, self.rank, error)
            raise

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Inside, an exception that is no ToolkitError is told, and comes out as :class:`Told`."""
        try:
            yield
        except (ToolkitError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            self._tell(error)
            raise Told from error

    def _tell(self, error: BaseException) -> None:
        """On stderr all of the traceback, a line, or nothing."""
        mine, presence = outcome.one_line(error), Presence(self.folder, self.rank)
        witness = faults.kind(error) in faults.WITNESSES
        with _going_anyway():
            known = _cause(presence, PATIENCE if witness else 0.0)
        short = mine if len(mine) <= LONGEST else f"{mine[:LONGEST]}..."
        who = f"rank {self.rank} on {presence.node}"
        if witness:
            if known is None:
                _say(f"{who} has seen another process fail: {short}; its traceback: {self.path}")
        elif known is not None and known.reason == mine[: outcome.LONGEST_ERROR]:
            _say(f"{who} failed as rank {known.rank} did: {short}; its traceback: {self.path}")
        else:
            _say("".join(traceback.format_exception(error)).rstrip())


@contextlib.contextmanager
def _going_anyway() -> Iterator[None]:
    """Inside, SIGTERM of a launcher that ends what is left changes nothing: else it would look like a kill."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _cause(presence: Presence, patience: float) -> Outcome | None:
    """What another rank of this start has told, which may be about to; None where none has, within ``patience``."""
    end = time.monotonic() + patience
    while True:
        known = outcome.read(presence.directory)
        if known is not None and _is_cause(known, presence):
            return known
        if time.monotonic() >= end:
            return None
        time.sleep(0.1)


def _is_cause(known: Outcome, presence: Presence) -> bool:
    of_this_start = bool(presence.attempt) and known.attempt == presence.attempt and known.state == "failed"
    return of_this_start and known.rank != presence.rank and known.kind not in faults.WITNESSES


def write(folder: Path, rank: int, error: BaseException) -> Path:
    """The file of this rank's newest traceback: in the output directory, or in that of temporary files."""
    attempt = Presence(folder, rank).attempt
    text = f"start {attempt}\n" + "".join(traceback.format_exception(error))
    own, other = folder / FOLDER, Path(tempfile.gettempdir())
    places = [own / f"error-rank-{rank}.txt", other / f"{folder.name}-error-rank-{rank}.txt"]
    for path in places[holder.is_of_another_run(folder, attempt) :]:
        with contextlib.suppress(OSError):
            if path.parent == own:
                own.mkdir(exist_ok=True)
            try:
                path.write_text(text)
            except OSError:
                path.unlink(missing_ok=True)  # of a full disk
                raise
            return path
    return Path("(not written)")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
