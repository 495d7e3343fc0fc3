"""A cluster without root: the same scripts, as an ordinary user, in whatever isolation the kernel gives that user."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster
HERE = Path(__file__).parent
NOBODY = 65534


@pytest.fixture
def folder():
    """Of that user's own, under /tmp: the path of a Unix socket has at most 107 characters."""
    made = Path(tempfile.mkdtemp(prefix="slurm-user-", dir="/tmp"))
    for script in HERE.glob("*.sh"):
        shutil.copy(script, made)
    if os.getuid() == 0:
        for path in (made, *made.iterdir()):
            os.chown(path, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def as_user(*words):
    if os.getuid() != 0:
        return [*map(str, words)]
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", *map(str, words)]


def test_an_ordinary_user_can_have_a_cluster(folder):
    place, job = folder / "c", folder / "job.sbatch"
    job.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --output={folder}/out\n"
        "srun bash -c 'echo $(id -u) $(hostname) $SLURM_GPUS_ON_NODE'\n"
    )
    settings = {"HOME": str(folder), "SLURM_FIX_WATCH": str(os.getpid())}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | settings
    keywords = {"env": environment, "cwd": folder, "capture_output": True, "text": True, "timeout": 180}
    done = subprocess.run(as_user(folder / "start_slurm.sh", place), **keywords)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        mode = (place / "run" / "mode").read_text().strip()
        done = subprocess.run(as_user(place / "in-cluster", "sbatch", "--wait", job), **keywords)
        assert done.returncode == 0, done.stdout + done.stderr
        names = ["n1", "n2"] if mode != "plain" else [os.uname().nodename] * 2
        user = os.getuid() or NOBODY
        assert sorted((folder / "out").read_text().splitlines()) == [f"{user} {name} 8" for name in names]
    finally:
        done = subprocess.run(as_user(folder / "stop_slurm.sh", place), **keywords)
        assert done.returncode == 0, done.stdout + done.stderr
    assert not list((place / "run").glob("*.pid"))


def test_the_owner_of_a_job_may_leave_out_a_node_when_it_is_requeued(cluster, folder):
    """As emitted scripts do it: an ordinary user, between the requeue and the end of the script."""
    job = folder / "job.sbatch"
    job.write_text(
        f"#!/bin/bash\n#SBATCH --requeue --open-mode=append --output={folder}/out\n"
        'echo "$SLURM_JOB_NODELIST"\n'
        '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0\n'
        "trap '' TERM\nscontrol requeue $SLURM_JOB_ID\n"
        'scontrol update JobId=$SLURM_JOB_ID ExcNodeList="$SLURM_JOB_NODELIST"\n'
    )
    number = cluster.run(*as_user("sbatch", "--parsable", job), cwd=folder).strip()
    done = cluster.wait(number, states={"COMPLETED", "FAILED"})
    while done["Restarts"] == "0" or done["JobState"] != "COMPLETED":  # the first end is that of the requeue
        done = cluster.wait(number, states={"COMPLETED", "FAILED"})
    first, second = [line for line in (folder / "out").read_text().splitlines() if line.startswith("n")]
    assert {first, second} == {"n1", "n2"} and done["ExcNodeList"] == first
