"""What a real Slurm makes of node lists, variables, ports and ways of asking for GPUs: emitted scripts rely on it."""

import re
from pathlib import Path

import msgspec
import pytest

from tests import plans
from tests.cluster import slurm
from tests.cluster.conftest import started
from toolkit.emit import script
from toolkit.emit import slurm as emitted

pytestmark = pytest.mark.cluster
# instead of the program, and of the check before it: each process says where it is, and the run is finished
PROGRAM = """#!/bin/bash
case $* in *"-m toolkit preflight"*) exit 0 ;; esac
echo "process $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME: rank ${RANK:-none} local ${LOCAL_RANK:-none}" \\
  "world ${WORLD_SIZE:-none} meeting ${MASTER_ADDR:-none}:${MASTER_PORT:-none} GPUs $CUDA_VISIBLE_DEVICES words $*"
sleep 0.5
touch plan/run/FINISHED
"""


def shell_job(cluster, folder, launcher="torchrun", nodes=2, directives=(), gpus=8, **site):
    """The emitted script of a plan of 8 GPUs per node, with a shell script in the place of torchrun or Python."""
    (folder / "bin").mkdir(parents=True)
    for name in ("torchrun", "python3"):
        (folder / "bin" / name).write_text(PROGRAM)
        (folder / "bin" / name).chmod(0o755)
    (folder / "plan").mkdir()
    (folder / "plan" / "plan.json").write_text("{}")
    made = msgspec.structs.replace(plans.DGX, nodes=nodes, gpus_per_node=gpus)
    settings = {"partition": "main", "account": "", "setup_command": f"PATH={folder}/bin:$PATH", "modules": ()} | site
    plan = plans.plan("p", plans.LLAMA_8B, plans.with_site(made, **settings), zero_stage=3)
    text = emitted.batch_script(plan, script.files_of(plan, "plan"), launcher)
    (folder / "train.sbatch").write_text(text)
    return cluster.run("sbatch", "--parsable", *directives, "train.sbatch", "a b", cwd=folder).strip()


def processes(cluster, number):
    job = cluster.wait(number)
    said = slurm.output(job)
    assert job["JobState"] == "COMPLETED", said
    return sorted(line for line in said.splitlines() if line.startswith("process ")), said


@pytest.mark.parametrize("nodelist", ["n[1-2]", "n[2,4]", "n1,n[3-4]", "n3"])
def test_node_lists(cluster, tmp_path, nodelist):
    hosts = cluster.run("scontrol", "show", "hostnames", nodelist).split()
    number = shell_job(cluster, tmp_path, nodes=len(hosts), directives=(f"--nodelist={nodelist}",))
    lines, said = processes(cluster, number)
    assert len(lines) == len(hosts) and f"nodes: {' '.join(hosts)} rendezvous: {hosts[0]}:" in said
    port = 20000 + int(number) % 10000
    assert all(f"--rdzv-endpoint={hosts[0]}:{port}" in line for line in lines), said


def test_hostnames_of_mixed_prefixes(cluster):
    """Names need not be of one pattern; the script takes what scontrol makes of them, line by line."""
    said = cluster.run("scontrol", "show", "hostnames", "gpu[08-10,12],login1,rack2-n[1-2]")
    assert said.split() == ["gpu08", "gpu09", "gpu10", "gpu12", "login1", "rack2-n1", "rack2-n2"]


def test_direct_srun_has_one_process_per_gpu(cluster, tmp_path):
    number = shell_job(cluster, tmp_path, launcher="srun", directives=("--nodelist=n[2-3]",))
    lines, said = processes(cluster, number)
    assert len(lines) == 16, said
    for rank in range(16):
        node = f"n{2 + rank // 8}"
        where = f"process {rank} of 16 on {node}: rank {rank} local {rank % 8} world 16 meeting n2:"
        (line,) = [line for line in lines if line.startswith(f"process {rank} ")]
        assert line.startswith(where) and "GPUs 0,1,2,3,4,5,6,7" in line, (
            line
        )  # each sees all: the device is LOCAL_RANK


@pytest.mark.parametrize(
    "site", [{"gpu_request": "gres"}, {"gpu_request": "gres", "gpu_type": "h100"}, {"gpu_type": "h100"}, {}], ids=str
)
def test_ways_of_asking_for_gpus(cluster, tmp_path, site):
    lines, said = processes(cluster, shell_job(cluster, tmp_path, **site))
    assert len(lines) == 2 and all("GPUs 0,1,2,3,4,5,6,7" in line for line in lines), said


def test_a_type_that_there_is_not_is_refused(cluster, tmp_path):
    with pytest.raises(AssertionError, match="configuration is not available"):
        shell_job(cluster, tmp_path, gpu_request="gres", gpu_type="a100")


def test_fewer_gpus_than_planned_stop_the_job(cluster, tmp_path):
    number = shell_job(cluster, tmp_path, directives=("--gpus-per-node=4",))
    job = cluster.wait(number)
    assert job["JobState"] == "FAILED" and "Slurm gave 4 GPUs, the plan needs 8" in slurm.output(job)
    assert "not started again" in slurm.output(job)


def test_a_plan_for_a_part_of_a_node_starts(cluster, tmp_path):
    """With --exclusive a job has all 8 GPUs of its nodes."""
    forms = [
        ("torchrun", 1, {}),
        ("srun", 1, {"gpu_request": "gres"}),
        ("srun", 4, {}),
        ("torchrun", 4, {"exclusive": False, "cpus_per_node": 24}),
    ]
    numbers = [
        shell_job(cluster, tmp_path / str(at), launcher, gpus=gpus, **site)
        for at, (launcher, gpus, site) in enumerate(forms)
    ]
    for number, (launcher, gpus, _) in zip(numbers, forms, strict=True):
        lines, said = processes(cluster, number)
        assert len(lines) == (2 if launcher == "torchrun" else 2 * gpus), said
        assert all(f"GPUs {','.join('01234567'[:gpus])} words" in line for line in lines), said


def test_what_else_a_user_asks_of_the_job(cluster, tmp_path):
    """More GPUs than planned, options that would hide them from the processes, or change the order of the ranks."""
    forms = [
        ("torchrun", "--gpus-per-node=8"),
        ("torchrun", "--gpus-per-task=4"),
        ("torchrun", "--gpu-bind=single:1"),
        ("srun", "--gres=gpu:8"),
        ("srun", "--gpus-per-task=1"),
        ("srun", "--distribution=cyclic"),
    ]
    numbers = [
        shell_job(cluster, tmp_path / str(at), launcher, gpus=4, directives=(asked,))
        for at, (launcher, asked) in enumerate(forms)
    ]
    for number, (launcher, asked) in zip(numbers, forms, strict=True):
        lines, said = processes(cluster, number)
        assert len(lines) == (2 if launcher == "torchrun" else 8), (asked, said)
        assert all("GPUs 0,1,2,3 words" in line for line in lines), (asked, said)
        if launcher == "srun":  # the ranks of a node are neighbours
            nodes = [line.split(" on ")[1].split(":")[0] for line in lines]
            assert nodes == sorted(nodes) and nodes.count(nodes[0]) == 4, (asked, said)


def test_a_total_of_gpus_that_falls_unequally_is_told(cluster, tmp_path):
    """--gpus counts over all nodes: Slurm makes 7 and 1 of 8."""
    number = shell_job(cluster, tmp_path, gpus=4, directives=("--gpus=8",), gpu_request="gres")
    job = cluster.wait(number)
    said = slurm.output(job)
    assert job["JobState"] == "COMPLETED" or "the plan needs 4" in said, said


def test_other_nodes_than_planned_stop_the_job(cluster, tmp_path):
    job = cluster.wait(shell_job(cluster, tmp_path, directives=("--nodes=3",)))
    assert job["ExitCode"] == "2:0" and "the job has 3 nodes, the plan needs 2" in slurm.output(job)


def test_without_the_submitters_environment(cluster, tmp_path):
    """``--export=NONE`` reaches srun too, unless the script says otherwise."""
    lines, _ = processes(cluster, shell_job(cluster, tmp_path, directives=("--export=NONE",)))
    assert len(lines) == 2


def test_two_jobs_at_once_have_ports_of_their_own(cluster, tmp_path):
    numbers = [
        shell_job(cluster, tmp_path / name, directives=("--nodelist=n[1-2]", "--exclusive=user")) for name in "ab"
    ]
    ports = {re.search(r"--rdzv-endpoint=n1:(\d+)", processes(cluster, number)[0][0])[1] for number in numbers}
    assert len(ports) == 2


def test_every_launcher_of_a_plan_is_accepted(cluster, tmp_path):
    for launcher in script.LAUNCHERS:
        plan = plans.plan("p", plans.LLAMA_8B, plans.with_site(plans.DGX, partition="main", account=""), zero_stage=3)
        path = Path(tmp_path / f"{launcher}.sbatch")
        path.write_text(emitted.batch_script(plan, script.files_of(plan, "plan"), launcher))
        assert re.search(r"Job \d+ to start at", cluster.run("sbatch", "--test-only", str(path), cwd=tmp_path))


def test_a_job_has_all_of_the_memory(tmp_path, monkeypatch):
    """Without --mem=0 this Slurm gives 1000 MB for each core, --exclusive or not; where memory is no resource the other
    tests show that --mem=0 does no harm."""
    monkeypatch.setenv("SLURM_FIX_SELECT", "CR_Core_Memory")
    monkeypatch.setenv("SLURM_FIX_CONF", "DefMemPerCPU=1000")
    shares_memory = started(nodes=4)
    try:
        given = {"": "2000000M", "none": "187.50G", "300G": "600G"}
        numbers = [shell_job(shares_memory, tmp_path / f"of-{text}", memory_per_node=text) for text in given]
        for number, whole in zip(numbers, given.values(), strict=True):
            lines, said = processes(shares_memory, number)
            assert len(lines) == 2 and f",mem={whole}," in shares_memory.job(number)["TRES"], said
    finally:
        slurm.stop(shares_memory)
