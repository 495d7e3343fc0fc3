"""run.json and steps.jsonl: what ran, where, with which versions, and one line for every optimizer step.

Only rank 0 writes, and nothing once another job has the directory. A line is on the disk before the next step begins:
each is appended, flushed and fsynced, so a killed job loses at most the line that it was writing; that torn line is cut
off at the next start. A run that is restarted from a checkpoint repeats some steps; nothing is deleted, and what a
later line has gone back behind holds no more (:func:`standing`).
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from toolkit import __version__
from toolkit.record import EvaluationRecord, EventRecord, RunRecord, StepRecord
from toolkit.runtime import durable, lease, tail

RUN_ID = "run_id"
RUN, STEPS, EVALUATIONS, EVENTS = "run.json", "steps.jsonl", "evaluations.jsonl", "events.jsonl"
PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "peft", "datasets", "megatron-core", "numpy")

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)  # a damaged line must not keep a run from going on

Record = TypeVar("Record", StepRecord, EvaluationRecord, EventRecord)


def run_record(name: str, plan: bytes, world_size: int, device: str) -> RunRecord:
    """The record of a start that happens now on this machine; ``plan`` is the content of plan.json."""
    return RunRecord(
        name=name,
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        world_size=world_size,
        versions=versions(),
        hostname=platform.node(),
        slurm_job_id=os.environ.get("SLURM_JOB_ID", ""),
        device=device,
        process_started_unix=process_started_unix(),
    )


def process_started_unix() -> float:
    """When this process was started, in seconds since 1970 (Linux: field 22 of ``/proc/self/stat`` and ``btime``)."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.time()


def versions() -> dict[str, str]:
    """Of Python, this package and the libraries that matter to a run, where they are installed."""
    return {"toolkit": __version__, "python": platform.python_version()} | _installed()


def _installed() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Telemetry:
    """The two files of one run; on ranks other than 0 every call does nothing.

    ``run.json`` describes the newest start. Earlier ones are kept as ``run.0.json``, ``run.1.json``,
    ... and counted in ``restart_count``.
    """

    def __init__(self, directory: str | Path, record: RunRecord, rank: int = 0) -> None:
        self.rank = rank
        self._directory = Path(directory)
        self._file: IO[bytes] | None = None
        self._restart = 0
        if rank != 0:
            return
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        earlier = 0
        while (folder / f"run.{earlier}.json").exists():
            earlier += 1
        if (folder / RUN).exists():
            (folder / RUN).rename(folder / f"run.{earlier}.json")
            earlier += 1
        self._restart = earlier
        self._record = msgspec.structs.replace(record, restart_count=earlier, run_id=run_id(folder))
        self._write_run()
        self._file = _open_at_line_end(folder / STEPS)

    def step(self, record: StepRecord) -> None:
        """Append one step; it is on the disk when this returns."""
        if self._file is None or not self._writes():
            return
        stamped = msgspec.structs.replace(record, restart=self._restart, ended_unix=time.time())
        with durable.naming(self._directory / STEPS):
            self._file.write(msgspec.json.encode(stamped) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def evaluation(self, record: EvaluationRecord) -> None:
        """Append one evaluation to ``evaluations.jsonl``, which there is from the first one on."""
        if self._writes():
            self._append(EVALUATIONS, msgspec.structs.replace(record, restart=self._restart, ended_unix=time.time()))

    def event(self, record: EventRecord) -> None:
        """Append to ``events.jsonl``, which there is from the first one on."""
        if self._writes():
            self._append(EVENTS, msgspec.structs.replace(record, restart=self._restart, at_unix=time.time()))

    def skipped(self, batches: tuple[int, ...]) -> None:
        """``run.json`` tells from now on that these are left out."""
        if self._writes() and self._record.skipped_batches != batches:
            self._record = msgspec.structs.replace(self._record, skipped_batches=batches)
            self._write_run()

    def _writes(self) -> bool:
        return self.rank == 0 and not lease.is_lost(self._directory)

    def _write_run(self) -> None:
        text = msgspec.json.format(msgspec.json.encode(self._record), indent=2)
        durable.replace(self._directory / RUN, text + b"\n")

    def _append(self, name: str, record: msgspec.Struct) -> None:
        with durable.naming(self._directory / name), _open_at_line_end(self._directory / name) as file:
            file.write(msgspec.json.encode(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self, last_save_stall_seconds: float = 0.0) -> None:
        """No more steps will follow; ``run.json`` tells when, and for how long the last save has held the end up."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if not self._writes():
                return
            self._record = msgspec.structs.replace(
                self._record, last_save_stall_seconds=last_save_stall_seconds, ended_unix=time.time()
            )
            self._write_run()


def known_run_id(directory: str | Path) -> str:
    """The id that a run has had since its first start; "" before."""
    path = Path(directory) / RUN_ID
    return path.read_text(errors="replace").strip() if path.is_file() else ""


def run_id(directory: str | Path, adopted: str = "") -> str:
    """The same, made where there is none; ``adopted`` replaces it: the run goes on from another folder's copies."""
    known = known_run_id(directory)
    if not known or adopted not in ("", known):
        known = adopted or os.urandom(8).hex()
        Path(directory).mkdir(parents=True, exist_ok=True)
        durable.replace(Path(directory) / RUN_ID, f"{known}\n".encode())
    return known


def _open_at_line_end(path: Path) -> IO[bytes]:
    file = path.open("a+b")
    whole = tail.length_of_whole_lines(file)
    if whole < file.seek(0, os.SEEK_END):
        file.truncate(whole)
    return file


def read_run(directory: str | Path) -> RunRecord:
    """The newest start of a run."""
    return msgspec.json.decode((Path(directory) / RUN).read_bytes(), type=RunRecord)


def read_steps(directory: str | Path) -> list[StepRecord]:
    """The steps that the run as it stands has made, in order, each once. What no start has written is left out."""
    steps = read_lines(directory)
    return [steps[number] for number in standing(steps)]


def last_steps(directory: str | Path, up_to: int, count: int) -> list[StepRecord]:
    """The last ``count`` that :func:`read_steps` gives up to a step; none where there is no file.

    Only the end of the file is read: every rank of a start needs them, and holds them for as long as it runs.
    """
    found: list[StepRecord] = []
    least = math.inf
    path = Path(directory) / STEPS
    for line in tail.lines_backwards(path) if path.exists() else ():
        with contextlib.suppress(*UNREADABLE):
            record = msgspec.json.decode(line, type=StepRecord)
            if record.step < least:
                least = record.step
                if record.step <= up_to:
                    found.append(record)
        if len(found) >= count:
            break
    return found[::-1]


def read_lines(directory: str | Path) -> list[StepRecord]:
    """Every step that was ever made, as often as it was, in that order."""
    return list(_lines(Path(directory) / STEPS, StepRecord))


def standing(steps: Sequence[StepRecord]) -> list[int]:
    """Which lines of steps.jsonl, in the order of the file, the run as it stands has made.

    A later start, or a run that has gone back, begins at some step again: what was made from there on before is lost,
    the part that has not been made again too.
    """
    found: list[int] = []
    least = math.inf
    for number in reversed(range(len(steps))):
        if steps[number].step < least:
            found.append(number)
            least = steps[number].step
    return found[::-1]


def read_evaluations(directory: str | Path) -> list[EvaluationRecord]:
    """The evaluations of a run in order; of a repeated step the later one, none where there has been none."""
    path = Path(directory) / EVALUATIONS
    found = {record.step: record for record in (_lines(path, EvaluationRecord) if path.exists() else ())}
    return [found[number] for number in sorted(found)]


def read_events(directory: str | Path) -> list[EventRecord]:
    """What happened to a run, in that order."""
    path = Path(directory) / EVENTS
    return list(_lines(path, EventRecord)) if path.exists() else []


def _lines(path: Path, kind: type[Record]) -> Iterator[Record]:
    """The lines that can be read, without a torn last one."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                with contextlib.suppress(*UNREADABLE):
                    yield msgspec.json.decode(line, type=kind)


def wandb_reporting(directory: str | Path, environment: MutableMapping[str, str], rank: int = 0) -> bool:
    """Whether to report to wandb: only where the user has set a ``WANDB_`` variable; offline where that is no key.

    ``WANDB_MODE`` overrules. The run keeps one identity over restarts: rank 0, which alone reports, stores its
    id beside the telemetry and puts it into ``environment`` for the wandb library to find.

    ``WANDB_SERVICE`` is taken out of ``environment``: no wish of the user's but the address of another process's
    sender, which children inherit, and which a batch system carries to machines where nothing listens. After a kill
    that sender still holds the run's id and refuses the next start (wandb 0.31, sdk/lib/service).
    """
    environment.pop("WANDB_SERVICE", None)
    if not any(name.startswith("WANDB_") for name in environment):
        return False
    if environment.get("WANDB_MODE") == "disabled" or environment.get("WANDB_DISABLED", "").lower() in ("true", "1"):
        return False
    environment.setdefault("WANDB_MODE", "online" if environment.get("WANDB_API_KEY") else "offline")
    environment.setdefault("WANDB_RESUME", "allow")
    environment.setdefault("WANDB_DIR", str(directory))
    identity = Path(directory) / "wandb_run_id"
    if rank == 0 and "WANDB_RUN_ID" not in environment:
        if not identity.exists():
            identity.parent.mkdir(parents=True, exist_ok=True)
            durable.replace(identity, os.urandom(8).hex().encode())
        environment["WANDB_RUN_ID"] = identity.read_text()
    return True
