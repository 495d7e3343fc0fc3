"""Faults that may come at any time: what each does, when it can come, and who has to notice it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.moments import END, EVALUATION, MOMENTS, PENDING, PREFLIGHT, SAVE, START_UP, STEP
from tests.cluster.runs import Run
from tests.cluster.slurm import Cluster
from toolkit.runtime.manifest import MANIFEST

TRAINING = (START_UP, STEP, SAVE, EVALUATION, END)
LATER = (STEP, SAVE, EVALUATION, END)
RUNNING = (PREFLIGHT, *TRAINING)
NODES = ("n1", "n2", "n3", "n4")
TORCHRUN, SRUN = "torchrun", "srun"


class NotNow(Exception):
    """What the fault needs is not there."""


@dataclass(frozen=True)
class Kind:
    """``inject`` tells what exactly it did. ``noticed``: the script or Slurm must see it. ``ends``: so does the job."""

    name: str
    inject: Callable[[Cluster, Run, random.Random], str]
    moments: tuple[str, ...]
    weight: float = 1.0
    noticed: bool = True
    ends: bool = False  # and is submitted again by hand
    asks: bool = False  # a request to stop: what was done is saved
    launcher: str = ""  # only with this one
    small: bool = False  # only on the small disk
    cables: bool = False  # only where nodes have networks of their own


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


def kill_node(cluster: Cluster, run: Run, dice: random.Random) -> str:
    node = dice.choice(hosts(cluster, run))
    cluster.kill_node(node)
    return node


def set_down(cluster: Cluster, run: Run, dice: random.Random) -> str:
    node = dice.choice(hosts(cluster, run))
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=soak")
    return node


def drain_and_requeue(cluster: Cluster, run: Run, dice: random.Random) -> str:
    node = dice.choice(hosts(cluster, run))
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=soak")
    return f"{node}, {requeue(cluster, run, dice)}"


def cut(cluster: Cluster, run: Run, dice: random.Random) -> str:
    node = dice.choice(hosts(cluster, run))
    cluster.cable(node, "down")
    return node


def requeue(cluster: Cluster, run: Run, dice: random.Random) -> str:
    if "Requested operation" in cluster.run("scontrol", "requeue", run.number, check=False):
        raise NotNow
    return "scontrol requeue"


def preempt(cluster: Cluster, run: Run, dice: random.Random) -> str:
    nodes = ",".join(hosts(cluster, run))
    options = ("--partition=urgent", "--nodes=2", f"--nodelist={nodes}", "--exclusive", "--output=/dev/null")
    cluster.run("sbatch", *options, "--wrap=sleep 1", cwd=run.folder)
    return nodes


def usr1(cluster: Cluster, run: Run, dice: random.Random) -> str:
    cluster.run("scancel", "--signal=USR1", "--batch", run.number, check=False)
    return "to the script"


def term(cluster: Cluster, run: Run, dice: random.Random) -> str:
    cluster.run("scancel", "--signal=TERM", run.number, check=False)
    return "to the processes"


def cancel(cluster: Cluster, run: Run, dice: random.Random) -> str:
    cluster.run("scancel", run.number, check=False)
    return ""


def near_the_limit(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """Slurm looks every 30 s, and warns then."""
    hours, minutes, seconds = map(int, run.job()["RunTime"].rpartition("-")[2].split(":"))
    limit = 60 * hours + minutes + 2
    cluster.run("scontrol", "update", f"JobId={run.number}", f"TimeLimit={limit}")
    return f"{limit} min after {60 * hours + minutes} min {seconds} s"


def stop_file(cluster: Cluster, run: Run, dice: random.Random) -> str:
    run.output.mkdir(parents=True, exist_ok=True)
    (run.output / "STOP").touch()
    return ""


def restart_controller(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """slurmctld dies, and is back some seconds later."""
    wanted, seconds = b"slurmctld\0-D\0", dice.uniform(0.2, 4)
    for number in cluster.processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{number}/cmdline").read_bytes() == wanted:
                os.kill(number, signal.SIGKILL)
    time.sleep(seconds)
    again = f"PATH=$PATH:/usr/sbin:/sbin; setsid slurmctld -D >>{cluster.folder}/log/slurmctld.out 2>&1 </dev/null &"
    cluster.run("sh", "-c", again)
    end = time.monotonic() + 30
    while "ERROR" in (said := cluster.run("sinfo", "-h", check=False).upper()) or "UNABLE" in said:
        assert time.monotonic() < end, said
        time.sleep(0.2)
    return f"{seconds:.1f} s"


def restart_slurmd(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """As by an update of its package: the steps live on. Without namespaces of its own a node is its daemon's."""
    node = dice.choice(hosts(cluster, run))
    daemon = cluster.slurmd(node)
    words = ("nsenter", "-t", _inside(daemon), "-m", "-u", *(["-n"] if cluster.mode == "netns" else []))
    said = f"{cluster.folder}/log/slurmd-{node}.out"
    again = f"PATH=$PATH:/usr/sbin:/sbin; setsid slurmd -D -N {node} >>{said} 2>&1 </dev/null &"
    holder = cluster.run(*words, "sh", "-c", "sleep 5 >/dev/null 2>&1 & echo $!").strip()  # keeps the namespaces
    os.kill(daemon, signal.SIGKILL)
    time.sleep(dice.uniform(0.1, 2))
    cluster.run("nsenter", "-t", holder, *words[3:], "sh", "-c", again)
    return node


def _inside(number: int) -> str:
    """The number of a process in the cluster's own name space."""
    status = Path(f"/proc/{number}/status").read_text()
    return status[status.index("NSpid:") :].split("\n")[0].split()[-1]


def valid(run: Run) -> list[int]:
    """Steps of the committed checkpoints; what this test has damaged has been noted in the run."""
    steps = []
    for path in run.output.glob(f"checkpoint-*/{MANIFEST}"):
        step = int(path.parent.name.split("-")[1])
        if run.damaged.get(step) != path.stat().st_mtime_ns:  # else: saved again since
            steps.append(step)
    return sorted(steps)


def damage(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """A kill, and before the next attempt reads it, the newest checkpoint of two is torn."""
    steps = valid(run)
    if len(steps) < 2:
        raise NotNow
    said = kill_rank(cluster, run, dice) if run.job()["JobState"] == "RUNNING" else "while it waits"
    folder = run.output / f"checkpoint-{steps[-1]}"
    try:
        manifest = folder / MANIFEST
        names = sorted(json.loads(manifest.read_text())["files"])
        run.damaged[steps[-1]] = manifest.stat().st_mtime_ns
        path = folder / dice.choice(names)
        content = bytearray(path.read_bytes())
        how = dice.choice(("truncated", "flipped", "emptied", "deleted"))
        if how == "flipped":
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.write_bytes({"truncated": content[: len(content) // 2], "flipped": content}.get(how, b""))
        if how == "deleted":
            path.unlink()
    except FileNotFoundError:  # deleted meanwhile, for a newer one
        return f"{said}, too late"
    return f"{said}, {folder.name}/{path.relative_to(folder)} {how}"


def lose_latest(cluster: Cluster, run: Run, dice: random.Random) -> str:
    said = kill_rank(cluster, run, dice) if run.job()["JobState"] == "RUNNING" else "while it waits"
    (run.output / "latest").unlink(missing_ok=True)
    return said


def fill_disk(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """All but some of the small disk, less than two checkpoints are."""
    left = dice.randrange(0, 12 * 2**20)
    state = os.statvfs(run.output.parent)
    size = state.f_bavail * state.f_frsize - left
    with (run.output.parent / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, size))
    return f"{left / 2**20:.1f} MiB left"


KINDS = (
    Kind("a rank is killed", kill_rank, TRAINING, 3),
    Kind("a rank is suspended", suspend_rank, LATER, 1),
    Kind("a rank pauses", pause_rank, LATER, 0.7, noticed=False),
    Kind("torchrun is killed", kill_torchrun, TRAINING, 2, launcher=TORCHRUN),
    Kind("srun is killed", kill_srun, RUNNING, 1),
    Kind("the job script is killed", kill_script, RUNNING, 0.7, ends=True),
    Kind("slurmstepd is killed", kill_slurmstepd, RUNNING, 1),
    Kind("a check of a node is killed", kill_check, (PREFLIGHT,), 3),
    Kind("a node loses power", kill_node, RUNNING, 1),
    Kind("a node is set DOWN", set_down, RUNNING, 1),
    Kind("a node is drained, requeue", drain_and_requeue, RUNNING, 0.7),
    Kind("a node is cut off", cut, TRAINING, 0.7, cables=True),
    Kind("scontrol requeue", requeue, RUNNING, 1),
    Kind("preempted", preempt, RUNNING, 1, asks=True),
    Kind("SIGUSR1 to the script", usr1, RUNNING, 1, asks=True),
    Kind("SIGTERM to the processes", term, RUNNING, 1, asks=True),
    Kind("the time limit is near", near_the_limit, LATER, 0.4, asks=True),
    Kind("the file STOP", stop_file, TRAINING, 1, asks=True),
    Kind("the file STOP while it waits", stop_file, (PENDING,), 1, noticed=False),
    Kind("scancel, submitted again", cancel, MOMENTS, 0.5, ends=True),
    Kind("newest checkpoint damaged", damage, (PENDING, *TRAINING), 2),
    Kind("latest deleted", lose_latest, (PENDING, *TRAINING), 1),
    Kind("the disk is full for a while", fill_disk, TRAINING, 2, ends=True, small=True),
    Kind("slurmctld is killed, starts again", restart_controller, MOMENTS, 0.7, noticed=False),
    Kind("slurmd is killed, starts again", restart_slurmd, RUNNING, 0.7, noticed=False),
)


def mend(cluster: Cluster, run: Run) -> None:
    """What an operator does: starts nodes, plugs them in, gives them back; nodes that the job avoids were repaired."""
    (run.output.parent / "filler").unlink(missing_ok=True)
    for node in NODES:
        try:
            cluster.slurmd(node)
        except AssertionError:
            cluster.start_node(node)
        if cluster.mode == "netns":
            cluster.cable(node, "up")
    away = cluster.run("sinfo", "-h", "-N", "-p", "urgent", "-o", "%N %T", check=False).split("\n")
    for line in away:
        if any(word in line for word in ("down", "drain")):
            cluster.run("scontrol", "update", f"NodeName={line.split()[0]}", "State=RESUME", check=False)
    job = run.job()
    if (
        job["JobState"] == "PENDING"
        and job.get("ExcNodeList", "(null)").count("n") - 2 * ("(" in job["ExcNodeList"]) > 1
    ):
        cluster.run("scontrol", "update", f"JobId={run.number}", "ExcNodeList=", check=False)
    if job["JobState"] in ("PENDING", "RUNNING"):
        cluster.run("scontrol", "update", f"JobId={run.number}", "TimeLimit=60", check=False)
