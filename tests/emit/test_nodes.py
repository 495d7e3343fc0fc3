"""What a job asks of its nodes, and what it makes of nodes that give more, less, or something else."""

import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests import plans
from tests.emit.fake_cluster import FakeCluster
from tests.emit.test_slurm import written
from toolkit.cluster import ClusterSpec, Site
from toolkit.emit import script, slurm, torchrun
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.registry.clusters import load_cluster
from toolkit.units import GIB


def plan_on(cluster: ClusterSpec = plans.DGX, **site: object) -> Plan:
    return plans.plan("p", plans.LLAMA_8B, plans.with_site(cluster, **{"memory_per_node": ""} | site), zero_stage=3)


def memory(plan: Plan) -> str:
    """What stands in the script for it."""
    lines = [line for line in slurm.directives(plan) if line.startswith("#SBATCH --mem")]
    return lines[0].partition("=")[2] if lines else ""


BIG = msgspec.structs.replace(plans.DGX, host_memory_bytes=1000.0 * GIB, host_cores=100)


def test_a_job_alone_on_its_nodes_asks_for_all_of_their_memory() -> None:
    """Otherwise Slurm gives what DefMemPerCPU or DefMemPerNode says, whatever --exclusive says."""
    assert memory(plan_on()) == "0"
    assert memory(plan_on(memory_per_node="900G")) == "900G"
    assert memory(plan_on(memory_per_node="none")) == ""  # for a site that refuses the option


def test_a_job_that_shares_its_nodes_asks_for_its_part() -> None:
    assert memory(plan_on(BIG, exclusive=False)) == "0"  # all of the cores
    assert memory(plan_on(BIG, exclusive=False, cpus_per_node=25)) == f"{900 * 1024 // 4}M"
    assert memory(plan_on(BIG, exclusive=False, cpus_per_node=200)) == "0"
    # of a cut node the cluster's figures are the part already
    assert memory(plan_on(BIG, exclusive=False, max_gpus_per_node=8)) == f"{900 * 1024}M"
    unknown = msgspec.structs.replace(BIG, host_memory_bytes=0.0)
    assert memory(plan_on(unknown, exclusive=False, cpus_per_node=25)) == ""
    assert memory(plans.all_plans()["tiny"]) == ""


def test_a_cluster_file_says_how_much_memory(tmp_path: Path) -> None:
    text = 'name = "c"\naccelerator = "h100-sxm5-80gb"\ngpus_per_node = 8\n[site]\nmemory_per_node = "{}"\n'
    for good in ("0", "none", "900G", "921600", "921600M", "2T"):
        (tmp_path / "c.toml").write_text(text.format(good))
        assert load_cluster(str(tmp_path / "c.toml")).site.memory_per_node == good
    for bad in ("900GB", "900 G", "all", "-1", "1.5T", "9e5"):
        (tmp_path / "c.toml").write_text(text.format(bad))
        with pytest.raises(ToolkitError, match="site.memory_per_node"):
            load_cluster(str(tmp_path / "c.toml"))


def test_every_key_that_reaches_the_script_is_described() -> None:
    text = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    table = text.partition("What reaches the batch script")[2].partition("**Memory.**")[0]
    named = set(re.findall(r"`\[?(?:site\.)?(\w+)\]?`", table))
    assert set(Site.__struct_fields__) - {"environment"} <= named and "[site.environment]" in table


# --- what a node gives, against the plan ------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "cluster")


def of_gpus(count: int) -> Plan:
    return plan_on(msgspec.structs.replace(plans.DGX, gpus_per_node=count))


@pytest.mark.parametrize(
    ("count", "environment", "seen", "told"),
    [
        (1, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, {"CUDA_VISIBLE_DEVICES": "0"}, "has 8 GPUs"),
        (4, {"CUDA_VISIBLE_DEVICES": "4,5,6,7,0,1"}, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "the first: 4,5,6,7"),
        (2, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "has 3 GPUs"),
        # without gres.conf's Flags Slurm sets those of all vendors
        (
            1,
            {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "2,3", "ZE_AFFINITY_MASK": "2,3"},
            {"CUDA_VISIBLE_DEVICES": "2", "ROCR_VISIBLE_DEVICES": "2", "ZE_AFFINITY_MASK": "2"},
            "has 2 GPUs (2,3)",
        ),
        (2, {"ROCR_VISIBLE_DEVICES": "0,1,2"}, {"ROCR_VISIBLE_DEVICES": "0,1"}, "has 3 GPUs"),
        (8, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, ""),
        (4, {}, {}, ""),  # nothing limits what is visible: a process takes the one of its own number
    ],
)
def test_more_gpus_than_planned_are_cut_to_the_first(cluster, count, environment, seen, told) -> None:
    done = cluster.run(written(cluster, of_gpus(count)), SLURM_GPUS_ON_NODE="8", **environment)
    assert done.returncode == 0, done.stderr
    found = cluster.seen_environment()
    assert {name: found.get(name) for name in seen} == seen
    assert done.stdout.count("note: node ") == (2 if told else 0) and told in done.stdout
    assert f"--nproc-per-node={count}" in cluster.words("torchrun.1")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SLURM_GPUS_ON_NODE": "3"}, "Slurm gave 3 GPUs, the plan needs 4"),
        ({"SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}, "Slurm gave 1 GPUs, the plan needs 4"),
        (
            {"CUDA_VISIBLE_DEVICES": "0"},
            "1 GPUs are visible (0), the plan needs 4; --gpus-per-task and --gpu-bind hide",
        ),
        ({"CUDA_VISIBLE_DEVICES": ""}, "no GPU is visible, the plan needs 4"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "no GPU is visible, the plan needs 4"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "no GPU is visible, the plan needs 4"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "ROCR_VISIBLE_DEVICES": "0,1"}, "2 GPUs are visible (0,1)"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,3"}, "GPU 3 is visible twice"),
    ],
)
def test_fewer_gpus_than_planned_stop_the_job(cluster: FakeCluster, environment: dict[str, str], words: str) -> None:
    done = cluster.run(written(cluster, of_gpus(4)), **environment)
    assert done.returncode == 2 and words in done.stderr
    assert not (cluster.record / "torchrun.0").exists()


def test_a_step_has_the_cores_of_the_smallest_node(cluster: FakeCluster) -> None:
    """``SLURM_CPUS_ON_NODE`` is of the first node; srun refuses a step that asks another one for more than it has."""
    for given, cores in (("96,64", "64"), ("96(x2)", "96"), ("128(x3),96(x2),112", "96")):
        done = cluster.run(written(cluster, of_gpus(8)), SLURM_JOB_CPUS_PER_NODE=given, SLURM_CPUS_ON_NODE="128")
        assert done.returncode == 0, done.stderr
        assert f"--cpus-per-task={cores}" in cluster.words("srun")
        assert f"--cpus-per-task={cores}" in cluster.words("srun.preflight")


def test_what_the_whole_job_was_asked_for_does_not_reach_the_steps(cluster: FakeCluster) -> None:
    """srun takes these variables for options; those of direct srun are in the order of the nodes."""
    asked = {"SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS_PER_GPU": "1", "SLURM_GPU_BIND": "single:1", "SLURM_GPUS": "16"}
    asked |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "of another run", "PET_NO_PYTHON": "1"}
    done = cluster.run(written(cluster, of_gpus(8)), **asked)
    assert done.returncode == 0 and not asked.keys() & cluster.seen_environment().keys()
    text = slurm.batch_script(of_gpus(8), script.files_of(of_gpus(8), "plan"), "srun")
    cluster.run(text, SLURM_PROCID="0", SLURM_NTASKS="16", SLURM_DISTRIBUTION="cyclic")
    assert "--distribution=block" in cluster.words("srun")


# --- the output directory ---------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["sbatch", "launch.sh"])
@pytest.mark.parametrize("case", ["file", "inside a file", "link", "read-only"])
def test_an_output_directory_that_cannot_be_is_wrong_input(cluster: FakeCluster, which: str, case: str) -> None:
    plan = of_gpus(8)
    text = written(cluster, plan)
    if which == "launch.sh":
        text = torchrun.launch_script(plan, script.files_of(plan, "plan"))
    run, out, first = cluster.submit / "plan" / "run", "plan/run", []
    if case == "file":
        run.write_text("")
    elif case == "inside a file":
        run.write_text("")
        out = "plan/run/deeper"
    elif case == "link":
        run.symlink_to("gone")
    else:
        run.mkdir()
        spaces = ["--user", "--map-root-user"] if os.geteuid() else []
        first = ["unshare", *spaces, "--mount", "bash", "-c", f'mount -t tmpfs -o ro tmpfs {run} && exec "$@"', "bash"]
    (cluster.directory / "spooled_script").write_text(text)
    environment = cluster.environment | {"RDZV_ENDPOINT": "n1:2", "RDZV_ID": "x"}
    words = [*first, "bash", str(cluster.directory / "spooled_script"), "--output-dir", out]
    done = subprocess.run(words, cwd=cluster.submit, env=environment, capture_output=True, text=True)
    cannot = "cannot make the output directory plan/run"
    told = {
        "file": f"{cannot}: a file is in the way\n  move it away",
        "inside a file": f"{cannot}/deeper: a file is in the way\n  move it away",
        "link": f"{cannot}: it is a link to gone, which is no directory\n  give another",
        "read-only": "may not write to the output directory plan/run: it belongs to ",
    }[case]
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert not (cluster.record / "srun").exists() and not list(cluster.record.glob("torchrun.*"))


# --- nodes without Slurm ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["n1:29500", "n1"])
def test_nodes_that_know_their_numbers_are_checked_together(cluster: FakeCluster, place: str) -> None:
    plan = of_gpus(8)
    text = torchrun.launch_script(plan, script.files_of(plan, "plan"))
    written(cluster, plan)
    del cluster.environment["SLURM_JOB_ID"]
    named = {"RDZV_ENDPOINT": place, "RDZV_ID": "mine"}
    assert cluster.run(text, **named).returncode == 0
    words = cluster.words("preflight.local")
    assert words[-4:] == ["--nodes", "1", "--node", "0"]
    assert cluster.run(text, **named, NODE_RANK="1").returncode == 0
    words = cluster.words("preflight.local")
    meeting = "n1:29500" if ":" in place else "n1:29400"  # the port of torchrun's own choice
    assert words[-8:] == ["--nodes", "2", "--node", "1", "--rendezvous", meeting, "--run-id", "mine"]
    assert words[words.index("--time-limit") + 1] == "1200"
