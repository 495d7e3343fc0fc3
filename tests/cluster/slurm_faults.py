"""Faults of nodes and of Slurm, and what Slurm does to jobs. Each tells what exactly it did."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

from tests.cluster.process_faults import NotNow, hosts
from tests.cluster.runs import Run
from tests.cluster.slurm import Cluster


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
