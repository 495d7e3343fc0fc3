"""How a start of a run ended: ``outcome.json`` for the run, and a few words from each rank for the job script.

Exit codes do not tell: torchrun turns every failure into 1, srun returns the highest of all tasks. So the
first rank that fails for a reason of its own writes why, or rank 0 what became of the run. A rank that is killed writes
nothing, and that is how it is known: a job script sets ``TOOLKIT_ATTEMPT`` to the name of this start, every
rank leaves a file of its number in ``OUT/.attempt/NAME``, and adds to it when it is asked to stop, fails or
leaves. Whoever came and said no more was killed; its file names the node.

    here NODE      the program has begun (before anything heavy is imported)
    asked SIGNAL   a request to stop has arrived, also while the main thread is in a collective
    failed KIND    see :mod:`toolkit.runtime.faults`
    left CODE      it ends by itself

Nothing here raises: a disk that is full or away must not hide why a run failed. For a full one rank 0 writes a file at
the start, ``.outcome.room``, whose blocks the outcome then takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import ToolkitError
from toolkit.runtime import faults, holder, lease
from toolkit.runtime.checkpoint import FINISHED
from toolkit.runtime.save_failed import SaveFailed

OUTCOME, ATTEMPTS, ATTEMPT_VARIABLE = "outcome.json", ".attempt", "TOOLKIT_ATTEMPT"
ROOM, ROOM_BYTES = ".outcome.room", 8192
LONGEST_ERROR = 2000  # characters of an exception's text


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """``state`` is finished, stopped (on request, a checkpoint is saved), ended (``--max-steps``) or failed."""

    schema: int = 1
    state: str
    kind: str = ""  # of a failure: toolkit.runtime.faults
    step: int = 0  # the last one that all ranks had done
    rank: int = 0
    node: str = ""
    reason: str = ""  # the signal or file that asked, or the exception in one line
    where: str = ""  # of a loss or gradient that is not finite: module or parameter, and rank
    told: bool = False  # the program has said the reason itself, on its node
    attempt: str = ""
    at: float = 0.0  # seconds since 1970 on the clock of the node


class Presence:
    """One rank of one start. ``step`` is for the caller to keep up to date."""

    def __init__(self, directory: str | Path, rank: int = 0) -> None:
        self.directory, self.rank, self.step = Path(directory), rank, 0
        self.node = os.environ.get("SLURMD_NODENAME") or platform.node()
        self.name = os.environ.get(ATTEMPT_VARIABLE, "")
        self.words = self.directory / ATTEMPTS / self.name / str(rank) if self.name else None
        # without a job script there is at least torchrun's own name of this start
        self.attempt = self.name or os.environ.get("TORCHELASTIC_RUN_ID", "")

    def here(self) -> None:
        """The rank has begun; what an earlier start wrote is not about this one."""
        if self.rank == 0 and not self._of_this_start(read(self.directory)):
            with contextlib.suppress(OSError):
                (self.directory / OUTCOME).unlink()
        if self.rank == 0:
            with contextlib.suppress(OSError):
                (self.directory / ROOM).write_bytes(b" " * ROOM_BYTES)
        self.say(f"here {self.node}")

    def say(self, words: str) -> None:
        """Append one line; one write, so that it is there as a whole or not at all."""
        if self.words is None:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self.words, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, f"{words}\n".encode())
            finally:
                os.close(descriptor)

    def left(self, state: str, code: int, reason: str = "") -> None:
        """It ends by itself; rank 0 tells for all, unless a rank has failed."""
        if self.rank == 0:
            self._write(Outcome(state=state, reason=reason, **self._place()))
            with contextlib.suppress(OSError):
                (self.directory / ROOM).unlink(missing_ok=True)
        self.say(f"left {code}")

    def failed(self, kind: str, reason: str, error: BaseException | None = None) -> None:
        """It ends with a failure. The first one that is not a mere witness of another's is the run's."""
        made = Outcome(
            state="failed",
            kind=kind,
            reason=reason[:LONGEST_ERROR],
            where=getattr(error, "where", ""),
            told=isinstance(error, ToolkitError),
            **self._place(),
        )
        if isinstance(error, SaveFailed) and error.rank not in (None, self.rank):  # all ranks raise it
            made = msgspec.structs.replace(made, rank=error.rank, node=error.host)
        self._write(made)
        self.say(f"failed {kind}")
        _tell_torchrun(made, error)

    def hung(self, rank: int, step: int, reason: str) -> None:
        """The watchdog ends the run, since this rank has not come on; it has said so."""
        place = self._place() | {"rank": rank, "step": step}
        self._write(Outcome(state="failed", kind="hang", reason=reason[:LONGEST_ERROR], told=True, **place))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Records an exception on its way out, before the process group goes: after that the others fail too."""
        try:
            yield
        except BaseException as error:
            self.failed(faults.kind(error), one_line(error), error)
            raise

    def _place(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "rank": self.rank,
            "node": self.node,
            "attempt": self.attempt,
            "at": round(time.time(), 3),
        }

    def _of_this_start(self, outcome: Outcome | None) -> bool:
        return outcome is not None and bool(self.attempt) and outcome.attempt == self.attempt

    def _write(self, outcome: Outcome) -> None:
        """Failures stay, but for those of witnesses, which everything else replaces."""
        if lease.is_lost(self.directory) or holder.is_of_another_run(self.directory, self.attempt):
            return
        path = self.directory / OUTCOME
        temporary = self.directory / f".{OUTCOME}.{self.node}.{os.getpid()}"
        try:
            there = read(self.directory)
            if (
                there is None
                or not self._of_this_start(there)
                or (there.kind in ("", "peer") and not _witness(outcome))
            ):
                self._fill(temporary, msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n")
                temporary.replace(path)
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _fill(self, temporary: Path, content: bytes) -> None:
        try:
            temporary.write_bytes(content)
        except OSError:  # no room but what was kept, or what a witness has said
            room = self.directory / ROOM
            (room if room.exists() else self.directory / OUTCOME).rename(temporary)
            with temporary.open("r+b", buffering=0) as file:
                file.write(content[:ROOM_BYTES])
                file.truncate()


def read(directory: str | Path) -> Outcome | None:
    """The outcome of the newest start that has one; None where there is none that can be read."""
    try:
        return msgspec.json.decode((Path(directory) / OUTCOME).read_bytes(), type=Outcome)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def replace(directory: str | Path, outcome: Outcome, attempt: str) -> None:
    """What the launcher (:mod:`toolkit.runtime.torchrun`) knows of this start, in place of what the ranks have told."""
    path = Path(directory) / OUTCOME
    temporary = path.with_name(f".{OUTCOME}.{os.getpid()}")
    known = msgspec.structs.replace(outcome, attempt=attempt, at=round(time.time(), 3))
    with contextlib.suppress(OSError):
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")
        temporary.replace(path)


def rank_of_environment() -> int:
    """As torchrun or a job script has set it; 0 where nobody has, or where it is no number."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def is_finished(directory: str | Path) -> bool:
    """Whether the whole run is done, as far as can be seen."""
    try:
        return (Path(directory) / FINISHED).is_file()
    except OSError:
        return False


def _witness(outcome: Outcome) -> bool:
    return outcome.kind == "peer"


def one_line(error: BaseException) -> str:
    """Its type and text; of a ToolkitError the sentences alone."""
    if isinstance(error, ToolkitError):  # each sentence and its remedy
        return "; ".join(" ".join(line.split()) for line in str(error).splitlines() if line.strip())
    return " ".join(f"{type(error).__name__}: {error}".split())


def told_to_torchrun(data: object) -> Outcome | None:
    """What a rank has written for torchrun, of torchrun's own copy of it: it lies on another disk than the output."""
    try:
        return msgspec.convert(data["message"]["extraInfo"]["outcome"], type=Outcome)  # type: ignore[index]
    except (TypeError, KeyError, msgspec.MsgspecError):
        return None


def _tell_torchrun(made: Outcome, error: BaseException | None) -> None:
    """In the form of ``torch.distributed.elastic`` (2.13): torchrun then names the first rank that failed, and why.

    Its summary has the traceback of what a person has to look for in the code, and nobody else's.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    bug = error is not None and not made.told and made.kind not in faults.WITNESSES
    trace = "".join(traceback.format_exception(error)) if bug else made.reason
    extra = {"py_callstack": trace, "timestamp": str(int(time.time())), "outcome": msgspec.to_builtins(made)}
    with contextlib.suppress(OSError):
        Path(path).write_text(json.dumps({"message": {"message": made.reason, "extraInfo": extra}}))
