"""Real runs on the cluster: plan and emit as a user does, submit what was written unedited, look at what it did."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import slurm
from tests.cluster.slurm import Cluster
from toolkit.record import StepRecord
from toolkit.runtime import outcome, telemetry

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SITE = """
name = "cpu-nodes"
accelerator = "cpu"
nodes = {nodes}
gpus_per_node = 1
host_memory_gib = 8
host_cores = 1

[intra_node]
name = "shared memory"
gb_per_second_per_gpu = 5
latency_microseconds = 20

[inter_node]
name = "virtual Ethernet"
gbit_per_second_per_node = 10
latency_microseconds = 30

[site]
partition = "main"
gpu_request = "none"
exclusive = false
time_limit = {limit}
setup_command = {setup}
"""


def toolkit(folder: Path, *words: object) -> str:
    """A command of the toolkit."""
    command = [sys.executable, "-m", "toolkit", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def site(nodes: int = 2, limit: str = "00:10:00", first: Path | None = None) -> str:
    """A cluster's TOML; its setup command makes this Python the one on PATH, and lets tests order trouble.

    The programs are those of this tree, wherever the toolkit was installed from. What lies in the folder ``first`` is
    found before that Python.
    """
    path = ":".join(str(folder) for folder in (first, Path(sys.executable).parent) if folder)
    setup = f"export PATH={path}:$PATH PYTHONPATH={HERE / 'saboteur'}:{ROOT}"
    return SITE.format(nodes=nodes, limit=json.dumps(limit), setup=json.dumps(setup))


def emit(
    folder: Path,
    recipe: str,
    *pins: str,
    nodes: int = 2,
    launcher: str = "torchrun",
    limit: str = "00:10:00",
    first: Path | None = None,
) -> Path:
    """The files of ``toolkit plan --recipe NAME --cluster FILE``, and of ``toolkit emit`` for another launcher."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site.toml").write_text(site(nodes, limit, first))
    asked = ("plan", "--recipe", recipe, "--cluster", "site.toml", "--gpus", f"{nodes}x1", "--out", "out")
    toolkit(folder, *asked, *pins)
    if launcher != "torchrun":
        toolkit(folder, "emit", "out/plan.json", "--out", "out", "--force", "--launcher", launcher)
    return folder / "out"


class Run:
    """A job and its output directory."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *arguments: str,
        options: tuple[str, ...] = (),
        check: str = "--skip collective",
    ) -> None:
        """Submit ``out/train.sbatch`` of the folder; ``arguments`` are the program's, ``options`` those of sbatch.

        ``check`` is options of the check before each start; its all-reduces import torch, which takes seconds.
        """
        self.cluster, self.folder, self.output = cluster, folder, folder / "out" / "run"
        command = ("sbatch", "--parsable", *options, "out/train.sbatch", *arguments)
        self._words = ("env", f"PREFLIGHT_OPTIONS={check}", *command)
        self.submit()

    def submit(self) -> None:
        """Again too, after a job that is over: it goes on from the newest checkpoint."""
        self.number = self.cluster.run(*self._words, cwd=self.folder).strip()
        self._looked = 0.0
        self._job = self.job()

    def log(self) -> str:
        """What the job has written so far."""
        return slurm.output(self._job)

    def job(self, older: float = 0.0) -> dict[str, str]:
        """Its fields; as they were up to so many seconds ago, since asking costs a process."""
        if time.monotonic() - self._looked > older:
            self._job, self._looked = self.cluster.job(self.number), time.monotonic()
        return self._job

    def lines(self) -> list[dict]:
        """Every line of ``steps.jsonl``, those of repeated steps too."""
        path = self.output / "steps.jsonl"
        text = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    def newest(self) -> int:
        """The last step that was written."""
        lines = self.lines()
        return lines[-1]["step"] if lines else 0

    def until(self, condition, timeout: float = 400) -> float:
        """Wait for it, on the way checking that the job is not over; the time."""
        end = time.monotonic() + timeout
        while not condition():
            state = self.job(older=0.5)["JobState"]
            assert state in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED"), f"{state}\n{self.log()}"
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)
        return time.monotonic()

    def until_step(self, step: int, timeout: float = 400) -> float:
        """Wait until that many steps are done."""
        return self.until(lambda: self.newest() >= step, timeout)

    def rank(self, rank: int) -> int:
        """The process of a rank, of the newest attempt: one before may still be ending."""
        for number in self.cluster.processes(self.number):
            environment = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in environment and b"-m" in words and self._attempt() in environment:
                return number
        raise AssertionError(f"rank {rank} has no process\n{self.log()}")

    def torchrun(self, node: str) -> int:
        """The process of torchrun on a node, of the newest attempt: it alone has ``--rdzv-id`` among its words."""
        for number in self.cluster.processes(self.number, node):
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
            python = b"python" in words[0]
            if python and b"--rdzv-id=" + self._attempt().partition(b"=")[2] in words:
                return number
        raise AssertionError(f"{node} has no torchrun\n{self.log()}")

    def _attempt(self) -> bytes:
        """As in the environment of its processes."""
        names = [path for path in (self.output / outcome.ATTEMPTS).glob(f"{self.number}-*") if path.is_dir()]
        newest = max(names, key=lambda path: [int(part) for part in path.name.split("-")], default=None)
        return f"{outcome.ATTEMPT_VARIABLE}={newest.name if newest else ''}".encode()

    def nothing_left(self, timeout: float = 100) -> list[str]:
        """Processes of the job that are still there after the time: none, it is hoped."""
        end = time.monotonic() + timeout
        while (found := self.cluster.processes(self.number)) and time.monotonic() < end:
            time.sleep(0.1)
        return [Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace") for number in found]

    def different(self, reference: list[StepRecord]) -> str:
        """In what the run is not the undisturbed one: every line, also of repeated steps; empty if in nothing."""
        expected = {step.step: (step.loss, step.learning_rate, step.samples_seen) for step in reference}
        for line in self.lines():
            found = (line["loss"], line["learning_rate"], line["samples_seen"])
            if found != expected[line["step"]]:
                return f"step {line['step']}: {found} instead of {expected[line['step']]}"
        steps = [step.step for step in telemetry.read_steps(self.output)]
        return "" if steps == sorted(expected) else f"steps {steps}"
