"""Faults on real runs: ``python -m tests.cluster.faults`` injects each of them and prints what came of it.

injected   after which step
detected   seconds until the job script or Slurm had noticed
back       seconds until the next step was done, all in all
lost       steps that had to be done again
result     the state of the job; whether its loss curve is that of the undisturbed run, bit for bit
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import runs, slurm
from tests.cluster.runs import Run
from tests.cluster.slurm import Cluster
from toolkit.record import StepRecord
from toolkit.runtime import telemetry

SAVE_STEPS = 10
LONG = 400  # seconds that nothing takes on a machine that does little else
AT_STEP = 13
TORCHRUN, SRUN = "torchrun", "srun"
DDP = ("tiny", "--framework", "ddp")
MEGATRON = ("tiny-pretrain",)
# Slurm looks at time limits every 30 s, and warns up to a minute early
NEAR_ITS_LIMIT = ("--time=1", "--signal=B:USR1@10")
HANGS_SOON = ("--hang-after", "5")
ECC = ("RuntimeError", "CUDA error: uncorrectable ECC error encountered")


@dataclass(frozen=True)
class Fault:
    """``inject`` gets the cluster and the run; ``mend`` brings back what it broke."""

    name: str
    inject: Callable[[Cluster, Run], None]
    launcher: str = TORCHRUN
    recipe: tuple[str, ...] = DDP
    at_step: int = AT_STEP  # 0: as soon as the job script runs
    options: tuple[str, ...] = ()  # of sbatch
    arguments: tuple[str, ...] = ()  # of the program
    trouble: dict | None = None
    then: Callable[[Cluster, Run], None] | None = None  # once it is noticed
    mend: Callable[[Cluster, Run], None] | None = None
    state: str = "COMPLETED"
    says: str = ""  # in the job's output
    mode: str = ""  # netns where a node needs its own network
    most_lost: int = SAVE_STEPS


@dataclass
class Row:
    """One line of the table."""

    name: str
    launcher: str
    injected: int
    detected: float
    back: float
    lost: int
    result: str
    said: str  # the job's output
    problems: list[str]


def kill_rank(cluster: Cluster, run: Run) -> None:
    os.kill(run.rank(1), signal.SIGKILL)


def suspend_rank(cluster: Cluster, run: Run) -> None:
    """It lives, and does nothing: all others wait for it."""
    os.kill(run.rank(1), signal.SIGSTOP)


def kill_torchrun(cluster: Cluster, run: Run) -> None:
    os.kill(run.torchrun(second_node(cluster, run)), signal.SIGKILL)


def second_node(cluster: Cluster, run: Run) -> str:
    """The node that does not run the job script."""
    hosts = cluster.run("scontrol", "show", "hostnames", cluster.job(run.number)["NodeList"]).split()
    return hosts[1]


def node_down(cluster: Cluster, run: Run) -> None:
    cluster.run("scontrol", "update", f"NodeName={second_node(cluster, run)}", "State=DOWN", "Reason=test")


def kill_node(cluster: Cluster, run: Run) -> None:
    cluster.kill_node(second_node(cluster, run))


def kill_first_node(cluster: Cluster, run: Run) -> None:
    cluster.kill_node(cluster.job(run.number)["BatchHost"])


def restart_dead_nodes(cluster: Cluster, run: Run) -> None:
    for node in ("n1", "n2", "n3", "n4"):
        try:
            cluster.slurmd(node)
        except AssertionError:
            cluster.start_node(node)


def cut(cluster: Cluster, run: Run) -> None:
    cluster.cable(second_node(cluster, run), "down")


def plug_in(cluster: Cluster, run: Run) -> None:
    for node in ("n1", "n2", "n3", "n4"):
        cluster.cable(node, "up")


def preempt(cluster: Cluster, run: Run) -> None:
    """Somebody with a higher priority wants all nodes for a second."""
    options = ("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    cluster.run("sbatch", *options, cwd=run.folder)


def usr1_to_the_script(cluster: Cluster, run: Run) -> None:
    cluster.run("scancel", "--signal=USR1", "--batch", run.number)


def term_to_the_ranks(cluster: Cluster, run: Run) -> None:
    cluster.run("scancel", "--signal=TERM", run.number)


def lengthen(cluster: Cluster, run: Run) -> None:
    """So that the later starts, on a machine that may be slow, are not stopped as well."""
    cluster.run("scontrol", "update", f"JobId={run.number}", "TimeLimit=10")


def nothing(cluster: Cluster, run: Run) -> None:
    """The trouble comes by itself."""


FAULTS = (
    Fault("a rank is killed", kill_rank, says="rank 1 on n2 was killed"),
    Fault("a rank is killed", kill_rank, SRUN, MEGATRON, says="rank 1 on n2 was killed"),
    Fault("torchrun is killed", kill_torchrun, says="on n2"),
    Fault("a node is set DOWN", node_down, mend=restart_dead_nodes),
    Fault("a node loses power", kill_node, mend=restart_dead_nodes, recipe=MEGATRON),
    Fault("the script's node loses power", kill_first_node, SRUN, mend=restart_dead_nodes),
    Fault("a node is cut off", cut, mend=plug_in, mode="netns"),
    Fault("preempted", preempt, most_lost=0),
    Fault("preempted", preempt, SRUN, MEGATRON, most_lost=0),
    Fault("the time limit is near", nothing, options=NEAR_ITS_LIMIT, trouble={"slow": 1.0}, then=lengthen, most_lost=0),
    Fault("asked to stop at start-up", usr1_to_the_script, at_step=0, most_lost=0),
    Fault("SIGTERM to the processes", term_to_the_ranks, SRUN, most_lost=0),
    Fault(
        "a GPU has a memory error",
        nothing,
        trouble={"raise": {"rank": 1, "step": AT_STEP, "node": "n2", "error": ECC}},
        says="requeue without n2: rank 1 on n2, after step 12: RuntimeError: CUDA error: uncorrectable ECC",
    ),
    Fault(
        "a bug of the program",
        nothing,
        trouble={"raise": {"rank": 1, "step": AT_STEP, "error": ("ValueError", "a bug")}},
        state="FAILED",
        says="not started again: it would fail again; rank 1 on n2, after step 12: ValueError: a bug",
    ),
)

# what tests of the script and of the watchdog show in less time
MORE = (
    Fault(
        "a rank is suspended", suspend_rank, arguments=HANGS_SOON, says="s; no stacks of rank 1 on n2; stacks are in"
    ),
)


def reference(cluster: Cluster, folder: Path, recipe: tuple[str, ...]) -> list[StepRecord]:
    """The steps of the undisturbed run."""
    runs.emit(folder, *recipe)
    run = Run(cluster, folder, "--save-steps", str(SAVE_STEPS))
    job = cluster.wait(run.number, timeout=LONG)
    assert job["JobState"] == "COMPLETED" and (run.output / "FINISHED").exists(), run.log()
    return telemetry.read_steps(run.output)


def inject(cluster: Cluster, folder: Path, fault: Fault, undisturbed: list[StepRecord]) -> Row:
    """One run with one fault, from the submission to the end, and that everything is as before."""
    runs.emit(folder, *fault.recipe, launcher=fault.launcher)
    if fault.trouble:
        (folder / "trouble.json").write_text(json.dumps(fault.trouble))
    run = Run(cluster, folder, "--save-steps", str(SAVE_STEPS), *fault.arguments, options=fault.options)
    if fault.at_step and fault.inject is not nothing:
        run.until_step(fault.at_step)
    else:
        run.until(lambda: "start: job" in run.log())
    at, injected, starts = time.monotonic(), run.newest(), run.log().count("\nstart: job")
    fault.inject(cluster, run)
    detected, back, last = at, 0.0, injected
    problems = []
    with contextlib.suppress(AssertionError):  # the state of the job is looked at below
        detected = run.until(lambda: noticed(cluster, run), timeout=LONG)
        last = run.newest()
        if fault.then:
            fault.then(cluster, run)
        if fault.inject is nothing:
            at, injected = detected - (time.time() - (run.output / "steps.jsonl").stat().st_mtime), last
        if fault.state == "COMPLETED":
            run.until(lambda: run.log().count("\nstart: job") > starts, timeout=LONG)
            count = len(run.lines())
            back = run.until(lambda: len(run.lines()) > count, timeout=LONG)
    try:
        if fault.mend:
            fault.mend(cluster, run)
        job = cluster.wait(run.number, timeout=LONG, states=slurm.FINAL - {"NODE_FAIL", "PREEMPTED"})
        cluster.all_idle()
    finally:
        cluster.run("scancel", run.number, check=False)
    if job["JobState"] != fault.state:
        problems.append(f"the job is {job['JobState']}, not {fault.state}")
    said = run.log()
    if fault.says not in said:
        problems.append(f"the output does not say: {fault.says}")
    lost = repeated(run.lines())
    if lost > fault.most_lost:
        problems.append(f"{lost} steps are lost, more than {fault.most_lost}")
    if fault.state == "COMPLETED":
        if not (run.output / "FINISHED").exists():
            problems.append("the run is not finished")
        if different := run.different(undisturbed):
            problems.append(f"another curve: {different}")
        if detected == at and fault.inject is not nothing and fault.at_step:
            problems.append("nothing was noticed")
    problems += [f"left behind: {left}" for left in run.nothing_left()]
    result = "; ".join(problems) or (
        "finished, the curve is equal" if fault.state == "COMPLETED" else "stopped, the reason is named"
    )
    return Row(
        fault.name, fault.launcher, injected, detected - at, back - at if back else 0.0, lost, result, said, problems
    )


def noticed(cluster: Cluster, run: Run) -> bool:
    """The script has seen the end of an attempt, or Slurm has taken the job off its nodes."""
    job = run.job(older=0.3)
    waits = job["JobState"] in ("RUNNING", "PENDING", "CONFIGURING") and job["Restarts"] == "0"
    return "\nend: srun returned" in run.log() or not waits


def repeated(lines: list[dict]) -> int:
    """Steps that were done more than once."""
    steps = [line["step"] for line in lines]
    return len(steps) - len(set(steps))


def table(rows: list[Row]) -> str:
    """As text."""
    head = f"{'fault':32} {'launcher':9} {'injected':>9} {'detected':>9} {'back':>8} {'lost':>5}  result"
    lines = [head, "-" * len(head)]
    for row in rows:
        times = f"{row.detected:7.1f} s {row.back:6.1f} s" if row.back > 0 else f"{row.detected:7.1f} s {'never':>8}"
        lines.append(
            f"{row.name:32} {row.launcher:9} {'step ' + str(row.injected):>9} {times} {row.lost:5}  {row.result}"
        )
    return "\n".join(lines)


def main(names: list[str]) -> int:
    """All faults, or those whose names contain one of the words."""
    chosen = [
        each for each in (*FAULTS, *MORE) if not names or any(name in f"{each.name} {each.launcher}" for name in names)
    ]
    cluster = slurm.start(nodes=4, gres="")
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            curves = {each: reference(cluster, folder / each[0], each) for each in {fault.recipe for fault in chosen}}
            for number, fault in enumerate(chosen):
                if fault.mode and cluster.mode != fault.mode:
                    print(f"{fault.name}: not here, the nodes have no networks of their own ({cluster.mode})")
                    continue
                since = time.monotonic()
                rows.append(inject(cluster, folder / str(number), fault, curves[fault.recipe]))
                row = rows[-1]
                print(table([row]).splitlines()[-1], f"({time.monotonic() - since:.0f} s)", flush=True)
                if row.problems:
                    print(row.said, file=sys.stderr)
    finally:
        slurm.stop(cluster)
    print(table(rows))
    return int(any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
