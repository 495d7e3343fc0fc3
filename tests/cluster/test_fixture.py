"""The cluster itself: it is like a real one where scripts can tell, and it leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import slurm

HERE = Path(__file__).parent
pytestmark = pytest.mark.cluster


def batch(folder, text):
    script = folder / "job.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --output={folder}/out\n{text}")
    return script


def test_shell_scripts_are_clean():
    scripts = [str(path) for path in HERE.glob("*.sh")]
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([str(shellcheck), *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nodes_have_names_and_gpus(cluster, tmp_path):
    text = "#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8\n"
    text += "srun bash -c 'echo $(hostname) $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES'\n"
    number = cluster.submit(batch(tmp_path, text), cwd=tmp_path)
    assert cluster.wait(number)["JobState"] == "COMPLETED"
    names = ["n1", "n2"] if cluster.mode != "plain" else [os.uname().nodename] * 2
    assert sorted((tmp_path / "out").read_text().splitlines()) == [f"{name} 8 0,1,2,3,4,5,6,7" for name in names]


def test_more_than_there_is_is_refused(cluster, tmp_path):
    script = batch(tmp_path, "#SBATCH --nodes=2 --gpus-per-node=9\ntrue\n")
    assert "configuration is not available" in cluster.run("sbatch", "--test-only", str(script), check=False)


def test_a_dead_rank_ends_the_job(cluster, tmp_path):
    both = "touch started.$SLURM_PROCID; until [ -e started.0 ] && [ -e started.1 ]; do sleep 0.05; done"
    rank = f"{both}; [ $SLURM_PROCID = 0 ] && kill -9 $$; exec sleep 100"
    text = f"#SBATCH --nodes=2 --ntasks-per-node=1\nsrun --kill-on-bad-exit=1 bash -c '{rank}'\n"
    job = cluster.wait(cluster.submit(batch(tmp_path, text), cwd=tmp_path))
    assert job["JobState"] == "FAILED"
    assert job["ExitCode"] in ("137:0", "143:0")  # srun returns the highest code of all tasks


def test_a_failing_test_leaves_nothing(tmp_path):
    inner = tmp_path / "test_inner.py"
    inner.write_text(
        "import pytest\n"
        "from tests.cluster import slurm\n"
        "from tests.cluster.conftest import cluster\n"
        "@pytest.mark.cluster\n"
        "def test_it(cluster):\n"
        f"    open({str(tmp_path / 'folder')!r}, 'w').write(str(cluster.folder))\n"
        "    cluster.run('sbatch', '--wrap', 'setsid sleep 300', '--output=/dev/null')\n"
        "    assert False\n"
    )
    root = HERE.parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cluster", "-p", "no:cacheprovider", str(inner)]
    done = subprocess.run(
        [*command, f"--rootdir={root}", "-c", str(root / "pyproject.toml")], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    folder = Path((tmp_path / "folder").read_text())
    assert not folder.exists()
    assert slurm.leftovers(folder) == []


def test_a_killed_test_run_leaves_nothing():
    holder = subprocess.Popen(["sleep", "300"])
    running = slurm.start(nodes=1, watch=holder.pid)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    end = time.monotonic() + 20
    while (running.folder.exists() or slurm.leftovers(running.folder)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not running.folder.exists()
    assert slurm.leftovers(running.folder) == []


def test_without_slurm_the_line_that_installs_it(monkeypatch, tmp_path):
    for name in ("bash", "dirname", "realpath", "env"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    script = tmp_path / "start"
    script.write_text((HERE / "start_slurm.sh").read_text().replace("PATH=$PATH:/usr/sbin:/sbin", ""))
    script.chmod(0o755)
    monkeypatch.setattr(slurm, "HERE", tmp_path)
    (tmp_path / "start_slurm.sh").symlink_to(script)
    with pytest.raises(slurm.SlurmUnavailable, match=r"(?s)not installed: munged.*apt-get install.*slurmctld"):
        slurm.start()
