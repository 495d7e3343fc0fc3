"""launch.sh: torchrun here, or on each of several nodes; found beside its files wherever they are moved."""

import shutil
from pathlib import Path

import pytest

from tests import plans
from tests.emit.fake_cluster import FakeCluster
from toolkit.emit import torchrun
from toolkit.emit.bundle import bundle

PLANS = plans.all_plans()


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "cluster")


def test_one_node(cluster: FakeCluster) -> None:
    folder = cluster.submit / "a plan"
    folder.mkdir()
    (folder / "plan.json").write_text("{}")
    (folder / "launch.sh").write_text(torchrun.launch_script(PLANS["tiny"]))
    done = cluster.run(f'bash "{folder}/launch.sh" --max-steps 3 "x y"')
    assert done.returncode == 0, done.stderr
    assert cluster.words("told_of") == [f"{folder}/run"]
    assert cluster.words("torchrun.local") == [
        "--nnodes=1",
        "--nproc-per-node=2",
        "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        "--shutdown-timeout=120",
        "--standalone",
        "--max-restarts=0",
        "-m",
        "recipes.finetune.train",
        "--plan",
        f"{folder}/plan.json",
        "--deepspeed",
        f"{folder}/ds_config.json",
        "--output-dir",
        f"{folder}/run",
        "--max-steps",
        "3",
        "x y",
    ]
    assert not {"NCCL_SOCKET_IFNAME", "PYTORCH_ALLOC_CONF"} & cluster.seen_environment("local").keys()


def test_it_finds_its_files_after_a_move_and_from_any_directory(cluster: FakeCluster) -> None:
    for folder, call in (("here", "cd here && bash launch.sh"), ("-dash", "bash ./-dash/launch.sh")):
        directory = cluster.submit / folder
        directory.mkdir()
        for name, text in bundle(PLANS["tiny"], "/somewhere/else").items():
            (directory / name).write_text(text)
        done = cluster.run(f"cd '{cluster.submit}' && {call}")
        assert done.returncode == 0, done.stderr
        words = cluster.words("torchrun.local")
        given = words[words.index("--plan") + 1]
        assert not given.startswith("-") and given.endswith("plan.json")


def test_several_nodes_need_a_meeting_point(cluster: FakeCluster) -> None:
    (cluster.submit / "plan.json").write_text("{}")
    (cluster.submit / "launch.sh").write_text(torchrun.launch_script(PLANS["dense"]))
    done = cluster.run("bash launch.sh")
    assert done.returncode == 2 and "this plan is for 2 nodes" in done.stderr
    done = cluster.run("bash launch.sh", RDZV_ENDPOINT="n1:29400")
    assert done.returncode != 0 and "RDZV_ID" in done.stderr
    done = cluster.run("bash launch.sh", RDZV_ENDPOINT="n1:29400", RDZV_ID="one")
    assert done.returncode == 0, done.stderr
    words = cluster.words("torchrun.local")
    assert words[4:7] == ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400", "--rdzv-id=one"]
    assert not [word for word in words if "node-rank" in word or "master" in word]


def test_a_machine_with_too_few_gpus_is_told(cluster: FakeCluster) -> None:
    (cluster.submit / "plan.json").write_text("{}")
    (cluster.submit / "launch.sh").write_text(torchrun.launch_script(PLANS["dense"]))
    done = cluster.run("bash launch.sh", RDZV_ENDPOINT="n1:1", RDZV_ID="one", FAKE_GPUS="4")
    assert done.returncode == 2 and "this machine has 4 GPUs, the plan needs 8 per node" in done.stderr
    done = cluster.run("bash launch.sh", RDZV_ENDPOINT="n1:1", RDZV_ID="one", FAKE_GPUS="0")
    assert done.returncode == 2 and "the plan needs 8 GPUs per node, this machine has none" in done.stderr


def test_the_site_software_is_used_but_not_its_container(cluster: FakeCluster) -> None:
    site = {"setup_command": "export FROM_SETUP=1", "container_runtime": "pyxis", "container_image": "x"}
    plan = plans.plan("p", plans.LLAMA_8B, plans.with_site(plans.DGX, **site), zero_stage=2)
    (cluster.submit / "plan.json").write_text("{}")
    (cluster.submit / "launch.sh").write_text(torchrun.launch_script(plan))
    done = cluster.run("bash launch.sh", RDZV_ENDPOINT="n1:1", RDZV_ID="one")
    assert done.returncode == 0, done.stderr
    assert cluster.seen_environment("local")["FROM_SETUP"] == "1"
    shutil.rmtree(cluster.submit)


@pytest.mark.parametrize(
    ("given", "kept"), [("0", "2"), ("x", "2"), ("", "2"), ("-1", "2"), ("10000000", "2"), ("7", "7")]
)
def test_what_the_program_refuses_is_not_told_by_the_check(cluster: FakeCluster, given: str, kept: str) -> None:
    """It would tell of one option, and not of the others that are wrong as well."""
    (cluster.submit / "plan.json").write_text("{}")
    (cluster.submit / "launch.sh").write_text(torchrun.launch_script(PLANS["tiny"]))
    done = cluster.run(f"bash launch.sh --keep '{given}' --bogus 1")
    assert done.returncode == 0, done.stderr
    words = cluster.words("preflight.local")
    assert words[words.index("--keep") + 1] == kept
    assert cluster.words("torchrun.local")[-4:] == ["--keep", given, "--bogus", "1"]


@pytest.mark.parametrize("code", ["0", "1", "2", "76", "130"])
def test_this_machine_is_checked_before_the_start(cluster: FakeCluster, code: str) -> None:
    (cluster.submit / "plan.json").write_text("{}")
    (cluster.submit / "launch.sh").write_text(torchrun.launch_script(PLANS["tiny"]))
    (cluster.directory / "check").write_text(f"exit {code}\n")
    done = cluster.run("bash launch.sh", SLURM_NODEID="1")  # as inside a job
    assert done.returncode == (75 if code == "130" else int(code)), done.stderr  # Ctrl-C: stopped before the start
    assert cluster.words("preflight.1")[2:] == [
        *("preflight", "./plan.json", "--output-dir", "./run", "--keep", "2", "--time-limit", "240"),
        *("--nodes", "1", "--node", "0"),
    ]
    assert (cluster.record / "torchrun.1").exists() == (code == "0")
    assert ("not started: toolkit preflight returned" in done.stderr) == (code in ("1", "2", "76"))
    assert ("PREFLIGHT=0" in done.stderr) == (code in ("1", "76"))  # wrong input is so for the program too
    if code != "0":
        done = cluster.run("bash launch.sh", PREFLIGHT="0")
        assert done.returncode == 0 and (cluster.record / "torchrun.local").exists(), done.stderr
