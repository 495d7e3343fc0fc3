"""Jobs whose surroundings are not those of a plain sbatch from a login shell: early signals, arrays, and
variables of the job that sbatch was called in.
"""

import re
import time

import pytest

from tests.cluster import slurm
from tests.cluster.test_launch_forms import processes, shell_job

pytestmark = pytest.mark.cluster
SHARED = {"exclusive": False, "cpus_per_node": 4}
# instead of the program, and of the check before it: waits for the request to stop, ends when it is started again
PROGRAM = """#!/bin/bash
name=${SLURM_ARRAY_TASK_ID:-}
case $* in *"-m toolkit preflight"*) exit 0 ;; esac
trap 'echo checkpoint-7 >plan/run$name/latest; exit 0' USR1
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then touch "plan/run$name/FINISHED"; exit 0; fi
touch "began$name"
for i in {1..900}; do sleep 0.1; done
"""


def until(condition, timeout=100):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def waiting_job(cluster, folder, *options, **site):
    """Submitted with PROGRAM in place; its number."""
    cluster.run("scancel", shell_job(cluster, folder, gpus=1, directives=("--hold",), **SHARED, **site))
    for name in ("torchrun", "python3"):
        (folder / "bin" / name).write_text(PROGRAM)
    script = folder / "train.sbatch"
    script.write_text(script.read_text().replace("=plan/run\n", '=plan/run"${SLURM_ARRAY_TASK_ID:-}"\n'))
    return cluster.run("sbatch", "--parsable", *options, "train.sbatch", cwd=folder).strip()


def goes_on(cluster, number):
    job = cluster.wait(number)
    said = slurm.output(job)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1"), said
    return said


def test_asked_to_stop_in_other_ways(cluster, tmp_path):
    """While the environment is loaded, when there is nothing yet to pass a signal on to; by ``--signal=B:TERM@300``."""
    early = tmp_path / "early"
    site = {"setup_command": f"touch {early}/loading; sleep 2; PATH={early}/bin:$PATH"}
    numbers = {"USR1": waiting_job(cluster, early, **site)}
    numbers |= {name: waiting_job(cluster, tmp_path / name) for name in ("TERM", "USR2")}
    until((early / "loading").exists)
    cluster.run("scancel", "--signal=USR1", "--batch", numbers["USR1"])
    for name in ("TERM", "USR2"):
        until((tmp_path / name / "began").exists)
        time.sleep(1)  # the traps of both ranks
        cluster.run("scancel", f"--signal={name}", "--batch", numbers[name])
    for name, number in numbers.items():
        said = goes_on(cluster, number)
        assert f"stop requested: 1, result: stopped, saved: step {0 if name == 'USR1' else 7}" in said


def test_cancelled_it_lets_the_directory_go(cluster, tmp_path):
    """Its own handler of SIGTERM does not keep it from that."""
    number = waiting_job(cluster, tmp_path)
    until((tmp_path / "began").exists)
    assert list((tmp_path / "plan" / "run").glob(".job*"))
    cluster.run("scancel", number)
    job = cluster.wait(number)
    assert job["JobState"] == "CANCELLED", slurm.output(job)
    until(lambda: not list((tmp_path / "plan" / "run").glob(".job*")))


# instead of the check before the start
BAD_NODE = """#!/bin/bash
words="$* "
id=${words##*--run-id }
if [ "$SLURM_PROCID" = 0 ]; then
  printf '{"run_id": "%s", "bad_nodes": ["n2"]}' "${id%% *}" >plan/run/preflight.json
fi
exit 76
"""


def test_a_bad_node_without_which_there_are_not_enough(cluster, tmp_path):
    """Slurm would hold the job for ever; it goes on, up to the limit of starts, and says so."""
    jobs = []
    for nodes, asked in ((2, ("--nodelist=n[1-2]",)), (4, ())):
        folder = tmp_path / str(nodes)
        jobs.append(waiting_job(cluster, folder, "--hold", "--export=ALL,MAX_NO_PROGRESS=1", *asked, nodes=nodes))
        for name in ("torchrun", "python3"):
            (folder / "bin" / name).write_text(BAD_NODE)
        cluster.run("scontrol", "release", jobs[-1])
    for number in jobs:
        job = cluster.wait(number)
        said = slurm.output(job)
        assert job["JobState"] == "FAILED" and "note: n2 cannot be left out: Slurm has no other nodes" in said, said
        assert job["Restarts"] == "1" and "not started again: the same in 1 more starts" in said, said


# instead of the check; the second node's own part of Slurm is killed when its work is done
WITHOUT_ITS_DAEMON = """#!/bin/bash
words="$* "
id=${words##*--run-id }
case $* in *"-m toolkit preflight"*) ;; *) touch plan/run/FINISHED; exit 0 ;; esac
if [ "$SLURM_PROCID" = 0 ]; then printf '{"run_id": "%s", "bad_nodes": []}' "${id%% *}" >plan/run/preflight.json
elif [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then kill -9 $PPID; fi
"""


def test_a_slurmstepd_is_killed_while_the_nodes_are_checked(cluster, tmp_path):
    """srun waits for that node for ever, though all are checked."""
    number = waiting_job(cluster, tmp_path, "--hold", "--export=ALL,STEP_END_SECONDS=2")
    for name in ("torchrun", "python3"):
        (tmp_path / "bin" / name).write_text(WITHOUT_ITS_DAEMON)
    cluster.run("scontrol", "release", number)
    assert "requeue: srun did not end after the nodes had been checked" in goes_on(cluster, number)


def test_one_task_of_an_array_is_requeued_without_the_others(cluster, tmp_path):
    array = waiting_job(cluster, tmp_path, "--array=0-1", "--output=%a.out")
    until(lambda: (tmp_path / "began0").exists() and (tmp_path / "began1").exists())
    time.sleep(0.5)
    # the last of them has the number of the array itself
    cluster.run("scancel", "--signal=USR1", "--batch", f"{array}_1")
    until((tmp_path / "plan" / "run1" / "FINISHED").exists)
    assert not (tmp_path / "plan" / "run0" / "FINISHED").exists()
    assert "REQUEUE" not in (tmp_path / "0.out").read_text()
    cluster.run("scancel", array)


INHERITED = {
    "SLURM_CONSTRAINT": "none-such",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_EXCLUSIVE": "1",
    "SLURM_MEM_PER_CPU": "100",
    "SLURM_NO_KILL": "1",
    "SLURM_REMOTE_CWD": "/",
    "SLURM_RESTART_COUNT": "99",
    "SLURM_STDOUTMODE": "none",
    "SLURM_STEP_GRES": "gpu:1",
    "SLURM_THREADS_PER_CORE": "2",
    "SLURM_TIMELIMIT": "1",
    "SLURM_WORKING_DIR": "/",
}


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_variables_of_the_job_that_submits(cluster, tmp_path, monkeypatch, launcher):
    """Each of these stopped the job, or made its steps smaller."""
    for name, value in INHERITED.items():
        monkeypatch.setenv(name, value)
    number = shell_job(cluster, tmp_path, launcher, gpus=2, **SHARED)
    lines, said = processes(cluster, number)
    assert len(lines) == (2 if launcher == "torchrun" else 4), said
    assert re.search(r"^start: job \d+ restart 0 ", said, re.MULTILINE)
