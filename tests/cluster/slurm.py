"""A private Slurm cluster on this machine, for tests: start it, run commands inside, wait for jobs, stop it."""

from __future__ import annotations

import os
import shutil
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

    def wait(self, number: str, timeout: float = 60, states: set[str] = FINAL) -> dict[str, str]:
        """The job's fields once it is in one of ``states``; AssertionError with its output when it is not in time."""
        end = time.monotonic() + timeout
        while True:
            job = self.job(number)
            if job["JobState"] in states:
                return job
            if time.monotonic() > end:
                raise AssertionError(f"job {number} is {job['JobState']} ({job['Reason']})\n{output(job)}")
            time.sleep(0.1)


def output(job: dict[str, str]) -> str:
    """What the job has written to its output file so far."""
    path = Path(job.get("StdOut", ""))
    return path.read_text(errors="replace") if path.is_file() else f"(no file {path})"


def start(
    nodes: int = 2, gres: str = "gpu:h100:8", partitions: str = "main", mode: str = "auto", watch: int = 0
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
