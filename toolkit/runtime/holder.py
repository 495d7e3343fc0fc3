"""Who holds an output directory: what the files of holders say, and whether such a holder is still there.

``.lease.G`` is made by the process that trains, ``.job.G`` by a batch script for the whole time of its job
(toolkit/emit/bodies/lease.sh), also while it looks at its nodes or waits between two attempts. Of each the highest G
counts. Slurm is asked first, where it is the holder's; then the process, where it is one of this machine; signs of life
decide what is left.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

LEASE, JOB = ".lease", ".job"
STALE_SECONDS = 120.0  # without a sign of life
ASK_SECONDS = 20.0  # for Slurm to answer
RUNNING = ("RUNNING", "SIGNALING", "STAGE_OUT", "RESIZING")
SUSPENDED = ("SUSPENDED", "STOPPED")


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lease."""

    host: str
    pid: int
    born: str = ""  # the process's start, in ticks since boot, with boot and name space: a number may be used again
    job_id: str = ""
    restart_count: int = 0
    cluster: str = ""  # Slurm's name of it; job numbers are those of one cluster
    folder: int = 0  # its inode: in a copy of a directory the files of holders are copies too
    run: str = ""  # the start, by its job script or by torchrun
    since: str = ""
    beats: int = 0


def of_this_process(environment: Mapping[str, str] = os.environ) -> Holder:
    """What this process says of itself; ``TOOLKIT_ATTEMPT`` is JOB-RESTART-ATTEMPT of a batch script."""
    attempt = environment.get("TOOLKIT_ATTEMPT", "")
    restarts = environment.get("SLURM_RESTART_COUNT") or attempt.partition("-")[2].partition("-")[0]
    return Holder(
        host=platform.node(),
        pid=os.getpid(),
        born=born(os.getpid()),
        job_id=environment.get("SLURM_JOB_ID", "") or attempt.partition("-")[0],
        restart_count=int(restarts) if restarts.isdecimal() else 0,
        cluster=environment.get("SLURM_CLUSTER_NAME", ""),
        run=attempt or environment.get("TORCHELASTIC_RUN_ID", ""),
        since=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    )


def files(directory: Path, kind: str) -> list[tuple[int, Path]]:
    """The files of one kind with their numbers, the newest first; nothing where there is no such directory."""
    name = re.compile(rf"{re.escape(kind)}\.(\d+)", re.ASCII)
    try:
        found = [(int(match[1]), path) for path in directory.iterdir() if (match := name.fullmatch(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, reverse=True)


def read(path: Path) -> Holder | None:
    """What a file says; None where it is gone or torn."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def read_now(path: Path) -> Holder | None:
    """The same for who decides on it: looked at again where torn, for it may be in the middle of being written.

    Raises OSError for a file that is there and cannot be read: that says nothing of whose it is.
    """
    for _ in range(5):
        try:
            return msgspec.json.decode(path.read_bytes(), type=Holder)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, RecursionError):
            time.sleep(0.1)
    return None


def in_words(holder: Holder | None) -> str:
    """Host, process, job, and since when."""
    if holder is None:
        return "another job"
    job = f" (job {holder.job_id})" if holder.job_id else ""
    since = f" since {holder.since}" if holder.since else ""
    return f"process {holder.pid} on {holder.host}{job}{since}"


def is_copied(holder: Holder, directory: Path) -> bool:
    """Whether the file came with a copy of the holder's directory."""
    try:
        return holder.folder not in (0, directory.stat().st_ino)
    except OSError:
        return False


def how_to_end(holder: Holder | None, stale_seconds: float) -> str:
    """What a user can do who wants the directory."""
    if holder is not None and holder.job_id:
        number = holder.job_id
        return f"wait for its end (squeue -j {number}), or end it (scancel {number}), or give another --output-dir"
    free = f"{stale_seconds:.0f} s after its last sign the directory is free"
    return f"give another --output-dir, or stop that process: {free}"


def is_same(one: Holder, other: Holder) -> bool:
    """Whether two are the same process."""
    return (one.host, one.pid, one.born) == (other.host, other.pid, other.born)


def lives_here(holder: Holder) -> bool | None:
    """Whether its process is there; None where it is not one of this machine, or of another name space."""
    if holder.host != platform.node() or space(holder.born) != space(born(os.getpid())):
        return None
    return born(holder.pid) == holder.born


def born(pid: int) -> str:
    """What no other process has: start time, boot, and the name space of process numbers; "" where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        if fields[0] == "Z":
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{fields[19]} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def space(text: str) -> str:
    """Where a process number means one process: boot and name space."""
    return text.partition(" ")[2]


def slurm_says(holder: Holder, path: Path, environment: Mapping[str, str] = os.environ) -> str:
    """``running``, ``suspended``, ``ending`` or ``over`` (also: waits to be started again); "" where nobody can tell.

    ``ending``: not all nodes have confirmed its end, there may be processes. A job that Slurm does not know is over,
    but not that of another user, whose file ``path`` is: sites hide those.
    """
    if not (holder.job_id.isascii() and holder.job_id.isdecimal() and holder.cluster):
        return ""
    if holder.cluster != (environment.get("SLURM_CLUSTER_NAME") or _cluster()):
        return ""
    said = _scontrol("show", "job", "-o", holder.job_id)
    if "Invalid job id" in said:
        return "over" if is_own(path) else ""
    line = next((each for each in said.splitlines() if each.startswith(f"JobId={holder.job_id} ")), "")
    found = re.search(r" JobState=([A-Z_]+)", line)
    known = dict.fromkeys(RUNNING, "running") | dict.fromkeys(SUSPENDED, "suspended") | {"COMPLETING": "ending"}
    return known.get(found[1], "over") if found else ""


def whose(directory: str | Path) -> str:
    """Who writes in a directory now, in words; "" where nobody is known to."""
    for kind in (LEASE, JOB):
        for _, path in files(Path(directory), kind):
            found = read(path)
            if found is None or is_copied(found, Path(directory)) or (here := lives_here(found)) is False:
                continue
            said = slurm_says(found, path) if here is None else "running"
            if said in ("running", "suspended") or (said != "over" and time.time() - modified(path) <= STALE_SECONDS):
                return in_words(found)
    return ""


def is_of_another_run(directory: str | Path, run: str) -> bool:
    """Whether somebody else trains in a directory: then a rank of ``run`` must write nothing there.

    A directory that cannot be read is nobody's: who asks is about to tell why a run ends, and must come to that.
    """
    try:
        return _is_of_another_run(Path(directory), run)
    except OSError:
        return False


def _is_of_another_run(directory: Path, run: str) -> bool:
    found = next((path for _, path in files(directory, LEASE)), None)
    if not run or found is None or (other := read(found)) is None or other.run in ("", run):
        return False
    if is_copied(other, directory):
        return False
    here = lives_here(other)
    return time.time() - modified(found) <= STALE_SECONDS if here is None else here


def sign(path: Path) -> tuple[bytes, int] | None:
    """What changes with each sign of life; None where the file is gone."""
    try:
        return path.read_bytes(), path.stat().st_mtime_ns
    except OSError:
        return None


def is_own(path: Path) -> bool:
    """Whether a file is this user's."""
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def modified(path: Path) -> float:
    """When a sign was last written, by the clock of the file server."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("-inf")


def _cluster() -> str:
    found = re.search(r"^ClusterName\s*=\s*(\S+)", _scontrol("show", "config"), re.MULTILINE)
    return found[1] if found else ""


def _scontrol(*words: str) -> str:
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout + done.stderr
