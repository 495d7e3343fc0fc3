"""A private Slurm cluster on this machine, for tests: start it, run commands inside, wait for jobs, stop it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge iproute2"
FINAL = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
    *("PREEMPTED", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"),
}


class SlurmUnavailable(Exception):
    """Slurm is not installed, or does not start here."""


class Cluster:
    """A running cluster. ``run`` works where its host names, addresses and processes are visible."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mode = (folder / "run" / "mode").read_text().strip()

    def command(self, *words: str) -> list[str]:
        return [str(self.folder / "in-cluster"), *map(str, words)]

    def run(self, *words: str, check: bool = True, cwd: Path | None = None, timeout: float = 60) -> str:
        """Stdout and stderr of a command; a client of Slurm may wait for ever, so there is always a limit."""
        done = subprocess.run(self.command(*words), text=True, capture_output=True, timeout=timeout, cwd=cwd)
        if check and done.returncode:
            raise AssertionError(f"{words} returned {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def submit(self, script: Path, *options: str, cwd: Path) -> str:
        """The number of the job."""
        return self.run("sbatch", "--parsable", *options, str(script), cwd=cwd).strip()

    def job(self, number: str) -> dict[str, str]:
        """Its fields, as ``scontrol show job`` names them."""
        words = self.run("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: str, timeout: float = 200, states: set[str] = FINAL) -> dict[str, str]:
        """The job's fields once it is in one of ``states``; AssertionError with its output when it is not in time."""
        end = time.monotonic() + timeout
        while True:
            job = self.job(number)
            if job["JobState"] in states:
                return job
            if time.monotonic() > end:
                raise AssertionError(f"job {number} is {job['JobState']} ({job['Reason']})\n{output(job)}")
            time.sleep(0.1)

    def processes(self, number: str = "", node: str = "") -> list[int]:
        """Numbers, as this machine sees them, of the cluster's processes: of one job, on one node."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                name = (process / "ns" / "uts").readlink().name if node else ""
            except OSError:
                continue  # it has ended meanwhile
            if f"SLURM_CONF={self.folder}/slurm.conf".encode() not in environment:
                continue
            if number and f"SLURM_JOB_ID={number}".encode() not in environment:
                continue
            if not node or name == self._host_of(node):
                found.append(int(process.name))
        return found

    def _host_of(self, node: str) -> str:
        """The UTS name space of a node, which all that runs there shares."""
        return Path(f"/proc/{self.slurmd(node)}/ns/uts").readlink().name

    def slurmd(self, node: str) -> int:
        """The process of a node's daemon."""
        wanted = f"slurmd\0-D\0-N\0{node}\0".encode()
        for number in self.processes():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{number}/cmdline").read_bytes() == wanted:
                    return number
        raise AssertionError(f"{node} has no slurmd")

    def kill_node(self, node: str) -> None:
        """As by a power cut: every process there, its daemon too. ``start_node`` is how it comes back."""
        for pid in self.processes(node=node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        """After ``kill_node``."""
        self.run("bash", str(HERE / "start_node.sh"), str(self.folder), node.removeprefix("n"), self.mode)

    def cable(self, node: str, state: str) -> None:
        """Take a node off the network (``down``), or put it back (``up``)."""
        assert self.mode == "netns", "only there has a node a network of its own"
        self.run("ip", "link", "set", f"veth{node.removeprefix('n')}", state)

    def all_idle(self, timeout: float = 100) -> None:
        """Wait until every node can take a job; a node that was away is told that it may come back."""
        end = time.monotonic() + timeout
        while True:
            states = self.run("sinfo", "-h", "-N", "-p", "urgent", "-o", "%N %T").split("\n")
            away = [line.split()[0] for line in states if line and not line.endswith(" idle")]
            if not away:
                return
            assert time.monotonic() < end, states
            for node in away:
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
            time.sleep(0.3)


def output(job: dict[str, str]) -> str:
    """What the job has written to its output file so far."""
    path = Path(job.get("StdOut", ""))
    return path.read_text(errors="replace") if path.is_file() else f"(no file {path})"


def start(
    nodes: int = 2,
    gres: str = "gpu:h100:8",
    partitions: str = "main",
    mode: str = "auto",
    watch: int = 0,
    small: str = "4m",
) -> Cluster:
    """Start a cluster in a new folder under /tmp (the path of a Unix socket has at most 107 characters).

    It ends with this process at the latest, also when that is killed. Raises SlurmUnavailable with what to
    install, or with what the daemons said.
    """
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    settings = {
        "SLURM_FIX_NODES": str(nodes),
        "SLURM_FIX_GRES": gres,
        "SLURM_FIX_PARTITIONS": partitions,
        "SLURM_FIX_SMALL": small,
        "SLURM_FIX_MODE": os.environ.get("SLURM_FIX_MODE", mode),
        "SLURM_FIX_WATCH": str(watch or os.getpid()),
    }
    script = str(HERE / "start_slurm.sh")
    # the script gives up by itself after 30 s, and stops what it has started
    done = subprocess.run([script, str(folder)], env=os.environ | settings, text=True, capture_output=True)
    if done.returncode:
        shutil.rmtree(folder)
        raise SlurmUnavailable(f"{done.stdout}{done.stderr}\nIf Slurm is not installed:\n  {INSTALL}")
    return Cluster(folder)


def stop(cluster: Cluster) -> None:
    """Stop it, remove its folder, and make sure that nothing of it is left."""
    done = subprocess.run(
        [str(HERE / "stop_slurm.sh"), str(cluster.folder)], text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left = leftovers(cluster.folder)
    shutil.rmtree(cluster.folder)
    assert not left, f"left behind: {left}"


def leftovers(folder: Path) -> list[str]:
    """Processes, mounts and control groups that a stopped cluster has left, by name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile, or is not ours
        if f"SLURM_CONF={folder}/slurm.conf".encode() in environment or str(folder).encode() in words:
            found.append(f"process {process.name} {b' '.join(words).decode(errors='replace')}")
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if f"{folder}/" in line]
    if (folder / "run" / "cgroup").exists():
        found.append((folder / "run" / "cgroup").read_text().strip())
    return found
