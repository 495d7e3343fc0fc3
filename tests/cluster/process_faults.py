"""Faults of a run's processes. Each takes cluster, run and dice, and tells what exactly it did."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.runs import Run
from tests.cluster.slurm import Cluster

NODES = ("n1", "n2", "n3", "n4")


class NotNow(Exception):
    """What the fault needs is not there."""


def hosts(cluster: Cluster, run: Run) -> list[str]:
    """The nodes of the job."""
    found = cluster.run("scontrol", "show", "hostnames", run.job()["NodeList"]).split()
    if len(found) != 2 or not set(found) <= set(NODES):
        raise NotNow
    return found


def _eventually(find: Callable[[], int], seconds: float = 10.0) -> int:
    """A process that may only just be starting."""
    end = time.monotonic() + seconds
    while True:
        try:
            return find()
        except (AssertionError, OSError):
            if time.monotonic() > end:
                raise NotNow from None
            time.sleep(0.05)


def _send(number: int, what: signal.Signals) -> None:
    try:
        os.kill(number, what)
    except ProcessLookupError:
        raise NotNow from None


def kill_rank(cluster: Cluster, run: Run, dice: random.Random) -> str:
    rank = dice.randint(0, 1)
    _send(_eventually(lambda: run.rank(rank)), signal.SIGKILL)
    return f"rank {rank}"


def suspend_rank(cluster: Cluster, run: Run, dice: random.Random) -> str:
    rank = dice.randint(0, 1)
    _send(_eventually(lambda: run.rank(rank)), signal.SIGSTOP)
    return f"rank {rank}"


def pause_rank(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """It stands still, for less than any limit."""
    number, seconds = _eventually(lambda: run.rank(1)), dice.uniform(0.2, 2)
    _send(number, signal.SIGSTOP)
    time.sleep(seconds)
    _send(number, signal.SIGCONT)
    return f"rank 1, {seconds:.1f} s"


def kill_torchrun(cluster: Cluster, run: Run, dice: random.Random) -> str:
    node = dice.choice(hosts(cluster, run))
    _send(_eventually(lambda: run.torchrun(node)), signal.SIGKILL)
    return node


def kill_srun(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """The client in the job script, and the twin that it forks."""
    found = _words(cluster, run, lambda words: words[0] == b"srun")
    if not found:
        raise NotNow
    for number in found:
        with contextlib.suppress(NotNow):
            _send(number, signal.SIGKILL)
    return ""


def kill_script(cluster: Cluster, run: Run, dice: random.Random) -> str:
    found = _words(cluster, run, lambda words: any(word.endswith(b"/slurm_script") for word in words[:3]))
    if not found:
        raise NotNow
    _send(min(found), signal.SIGKILL)
    return ""


def kill_check(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """One of the processes that check the nodes."""
    found = _words(cluster, run, lambda words: b"preflight" in words and b"python" in words[0])
    if not found:
        raise NotNow
    _send(dice.choice(found), signal.SIGKILL)
    return ""


def kill_slurmstepd(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """Slurm's own process over a step, or over the job script."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title = (process / "cmdline").read_bytes()
            if title.startswith(f"slurmstepd: [{run.number}.".encode()) and b"extern" not in title:
                found.append((int(process.name), title.split(b"\0")[0].decode()))
    if not found:
        raise NotNow
    number, title = dice.choice(sorted(found))
    _send(number, signal.SIGKILL)
    return title


def _words(cluster: Cluster, run: Run, wanted: Callable[[list[bytes]], bool]) -> list[int]:
    found = []
    for number in cluster.processes(run.number):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
            if wanted(words):
                found.append(number)
    return found
