"""The batch script: its directives, and what it does when it runs."""

import re
import signal
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from tests import plans
from tests.emit.fake_cluster import FakeCluster
from toolkit.emit import script, slurm
from toolkit.errors import ToolkitError
from toolkit.plan import Plan

PLANS = plans.all_plans()


def on_site(name: str = "zero3", **site: object) -> Plan:
    plan = PLANS[name]
    return msgspec.structs.replace(plan, cluster=plans.with_site(plan.cluster, **site))


def options(plan: Plan) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in slurm.directives(plan)]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


# --- directives ------------------------------------------------------------------------------------


def test_directives_of_a_gpu_job() -> None:
    assert slurm.directives(PLANS["zero3"]) == [
        "#SBATCH --account=research",
        "#SBATCH --exclusive",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --job-name=zero3",
        "#SBATCH --mem=0",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=%x-%j.out",
        "#SBATCH --partition=gpu",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@260",
        "#SBATCH --time=12:00:00",
    ]


@pytest.mark.parametrize("name", PLANS)
def test_one_task_per_node_and_gpus_by_node(name: str) -> None:
    # without a task count Slurm starts one copy per cpus-per-task (seml 177); --gpus is a total of the job and
    # --gpus-per-task hides the other GPUs (MACE 435)
    found = options(PLANS[name])
    assert found["ntasks-per-node"] == "1"
    assert not {"gpus", "gpus-per-task", "gpu-bind", "ntasks"} & found.keys()
    on_cpu = PLANS[name].cluster.accelerator.architecture == "cpu"
    assert ("gpus-per-node" in found) == (not on_cpu) and "gres" not in found


def test_the_ways_of_asking_for_gpus() -> None:
    assert options(on_site(gpu_request="gres"))["gres"] == "gpu:8"
    assert options(on_site(gpu_request="gres", gpu_type="h100"))["gres"] == "gpu:h100:8"
    assert options(on_site(gpu_type="h100"))["gpus-per-node"] == "h100:8"
    with pytest.raises(ToolkitError, match="gpu_request 'none'"):
        slurm.directives(on_site(gpu_request="none"))
    with pytest.raises(ToolkitError, match="gpu_request 'gpus'"):
        slurm.directives(on_site(gpu_request="gpus"))


@pytest.mark.parametrize(("per_node", "nodes"), [(4, 16), (16, 4), (8, 8)])
def test_nodes_need_not_have_8_gpus(per_node: int, nodes: int) -> None:
    cluster = msgspec.structs.replace(plans.DGX, nodes=nodes, gpus_per_node=per_node)
    found = options(plans.plan("p", plans.LLAMA_8B, cluster, zero_stage=2))
    assert (found["nodes"], found["gpus-per-node"]) == (str(nodes), str(per_node))


def test_a_request_above_the_partitions_cap_is_refused() -> None:
    with pytest.raises(ToolkitError, match="at most 4: it would never start"):
        slurm.directives(on_site(max_gpus_per_node=4))
    assert options(on_site(max_gpus_per_node=8))["gpus-per-node"] == "8"


def test_a_job_that_shares_its_nodes_asks_for_cores() -> None:
    assert "cpus-per-task" not in options(PLANS["zero3"])  # exclusive: it has them all
    assert options(on_site(cpus_per_node=96))["cpus-per-task"] == "96"
    assert options(PLANS["tiny"])["cpus-per-task"] == "2"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("12:00:00", 43200),
        ("1-0", 86400),
        ("1-12:30", 131400),
        ("2-12:30:15", 217815),
        ("UNLIMITED", 0),
        ("", 0),
    ],
)
def test_time_limits(text: str, seconds: int) -> None:
    assert script.limit_seconds(text) == seconds


@pytest.mark.parametrize("text", ["1d", "12h", "1:2:3:4", "$(date)", "10 --wrap=id", "\n10", "１２"])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ToolkitError, match="time limit"):
        slurm.batch_script(on_site(time_limit=text), script.Files(directory="/p"))


def test_the_request_to_stop_comes_early_enough() -> None:
    # a step of 20 s and a save of 90 s need 110 s at the very least
    plan = PLANS["zero3"]
    step = msgspec.structs.replace(plan.step, seconds=20.0)
    cluster = msgspec.structs.replace(plan.cluster, storage_bandwidth_bytes_per_second=1.4e9)
    plan = msgspec.structs.replace(plan, step=step, cluster=cluster, total_parameters=9_000_000_000)
    assert script.stop_seconds(plan) == 2 * (20 + 90) + 60
    assert script.stop_seconds(on_site(time_limit="2")) == 60  # never more than half of the limit
    slow = msgspec.structs.replace(plan.cluster, storage_bandwidth_bytes_per_second=1.0)
    slow = plans.with_site(slow, time_limit="30-0")
    assert script.stop_seconds(msgspec.structs.replace(plan, cluster=slow)) == 65535  # Slurm's own limit


def test_a_short_time_limit_is_told_where_a_stop_may_take_longer() -> None:
    plan = on_site(time_limit="2")
    assert script.stop_seconds(plan) == 60
    note = (
        "a job is asked to stop 60 s before its time limit, and a step and a save may take 260 s: that is half of the"
        " limit 2; give the site a time_limit of 520 s or more"
    )
    assert script.stop_note(plan) == note
    text = slurm.batch_script(plan, script.Files(directory="/p"))
    assert f"\n# Note: {note}.\n" in text and "#SBATCH --signal=B:USR1@60\n" in text
    assert script.stop_note(on_site(time_limit="8:39")) and not script.stop_note(on_site(time_limit="8:40"))
    assert script.stop_note(PLANS["zero3"]) == "" and "# Note:" not in slurm.batch_script(
        PLANS["zero3"], script.Files(directory="/p")
    )


@pytest.mark.parametrize("field", ["partition", "account", "qos", "reservation", "constraint", "gpu_type"])
@pytest.mark.parametrize(
    "value",
    ["a b", "a$(touch x)", "a;b", "a\nb", "a\n#SBATCH --wrap=id", '"a"', "'a'", "a#b", "-a", "--wrap=id", "a`b`", "ä"],
)
def test_a_directive_never_holds_what_it_cannot_carry(field: str, value: str) -> None:
    with pytest.raises(ToolkitError, match=re.escape(f"{field} {value!r}")):
        slurm.directives(on_site(**{field: value}))


def test_all_bad_directives_are_told_together() -> None:
    with pytest.raises(ToolkitError) as caught:
        slurm.directives(on_site(partition="a b", account="c d", qos="ok"))
    assert len(caught.value.problems) == 2


def test_constraints_may_be_expressions() -> None:
    assert options(on_site(constraint="[rack1|rack2]&nvlink*2"))["constraint"] == "[rack1|rack2]&nvlink*2"


# --- the script, run -------------------------------------------------------------------------------


def written(cluster: FakeCluster, plan: Plan, directory: str = "plan") -> str:
    folder = cluster.submit / directory
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text("{}")
    return slurm.batch_script(plan, script.files_of(plan, directory))


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "cluster")


def test_what_srun_and_torchrun_are_given(cluster: FakeCluster) -> None:
    done = cluster.run(written(cluster, PLANS["zero3"]), "--max-steps", "5", "a b")
    assert done.returncode == 0, done.stderr
    assert cluster.words("srun")[:8] == [
        "--nodes=2",
        "--kill-on-bad-exit=1",
        "--mem=0",
        "--export=ALL",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=96",
        "bash",
    ]
    expected = [
        "--nnodes=2",
        "--nproc-per-node=8",
        "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        "--shutdown-timeout=260",
        "--max-restarts=0",  # the script starts again, when it knows why the last attempt ended
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=n1:{20000 + 1234567 % 10000}",
        "--rdzv-id=1234567-0-0",
        "-m",
        "recipes.finetune.train",
        "--plan",
        "plan/plan.json",
        "--deepspeed",
        "plan/ds_config.json",
        "--output-dir",
        "plan/run",
        "--max-steps",
        "5",
        "a b",
    ]
    assert cluster.words("torchrun.0") == cluster.words("torchrun.1") == expected
    assert "2 x 8 = 16 processes" in done.stdout and "nodes: n1 n2" in done.stdout
    assert "node 1 is" in done.stdout
    assert (cluster.submit / "plan/run").is_dir()
    # c10d only: with master_* besides, ranks would not be where they are expected (pytorch 137402)
    environment = cluster.seen_environment()
    assert not [word for word in expected if "master" in word or "node-rank" in word]
    assert not {"MASTER_ADDR", "MASTER_PORT"} & environment.keys()
    assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert environment["OMP_NUM_THREADS"] == "8"


def test_a_node_name_that_does_not_resolve_is_replaced_by_its_address(cluster: FakeCluster) -> None:
    # otherwise torchrun tries for 105 s and fails
    done = cluster.run(written(cluster, PLANS["zero3"]), FAKE_UNRESOLVED="1")
    assert done.returncode == 0, done.stderr
    assert cluster.words("torchrun.0")[6] == f"--rdzv-endpoint=10.1.2.3:{20000 + 1234567 % 10000}"


@pytest.mark.parametrize("name", ["JOB_ID", "JOB_NUM_NODES", "JOB_NODELIST", "CPUS_ON_NODE", "SUBMIT_DIR"])
def test_run_without_sbatch_it_says_so(cluster: FakeCluster, name: str) -> None:
    """On a login node, or in a shell of salloc, which sets some of them."""
    del cluster.environment[f"SLURM_{name}"]
    done = cluster.run(written(cluster, PLANS["zero3"]))
    said = f"error: this script is for sbatch, which has not started it: SLURM_{name} is not set\n  submit it: sbatch /"
    assert done.returncode == 2 and done.stderr.startswith(said) and done.stderr.count("\n") == 2
    assert not (cluster.submit / "plan/run").exists()


def test_another_shell_says_so(cluster: FakeCluster) -> None:
    path = cluster.directory / "train.sbatch"
    path.write_text(written(cluster, PLANS["zero3"]))
    done = subprocess.run(["dash", str(path)], cwd=cluster.submit, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"error: this script is for bash\n  bash {path}\n")


def test_the_step_has_all_cores_of_the_job(cluster: FakeCluster) -> None:
    """The variable is that of a shell of ``salloc --cpus-per-task=2`` which sbatch was called in."""
    cluster.run(written(cluster, PLANS["zero3"]), SLURM_CPUS_PER_TASK="2")
    assert "--cpus-per-task=96" in cluster.words("srun")


def test_a_restart_has_its_own_rendezvous(cluster: FakeCluster) -> None:
    cluster.run(written(cluster, PLANS["zero3"]), SLURM_RESTART_COUNT="3")
    assert "--rdzv-id=1234567-3-0" in cluster.words("torchrun.0")


def test_the_pretraining_program_gets_its_file(cluster: FakeCluster) -> None:
    cluster.run(written(cluster, PLANS["dense"]))
    words = cluster.words("torchrun.0")
    assert words[words.index("-m") + 1] == "recipes.pretrain.train"
    assert words[words.index("--megatron") + 1] == "plan/megatron_core.json" and "--deepspeed" not in words
    assert cluster.seen_environment()["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_many_hosts_do_not_break_the_pipe(cluster: FakeCluster) -> None:
    # "scontrol show hostnames | head -n 1" dies of SIGPIPE under pipefail: 10 of 10 times at 60,000 names
    done = cluster.run(written(cluster, PLANS["zero3"]), FAKE_HOSTS="60000")
    assert done.returncode == 0
    assert cluster.words("torchrun.0")[6].startswith("--rdzv-endpoint=n1:")


@pytest.mark.parametrize("code", ["1", "3", "137"])
def test_the_programs_failure_is_the_jobs(cluster: FakeCluster, code: str) -> None:
    done = cluster.run(written(cluster, PLANS["zero3"]), FAKE_TORCHRUN=code)
    assert done.returncode == int(code) and not (cluster.record / "requeue").exists()


def test_a_finished_run_is_known_by_its_marker_not_by_the_code_of_srun(cluster: FakeCluster) -> None:
    done = cluster.run(
        written(cluster, PLANS["zero3"]), FAKE_TORCHRUN="finish-and-fail", FAKE_OUTPUT=str(cluster.submit / "plan/run")
    )
    assert done.returncode == 0 and "finished" in done.stdout


def test_a_finished_run_is_not_started_again(cluster: FakeCluster) -> None:
    text = written(cluster, PLANS["zero3"])
    (cluster.submit / "plan/run").mkdir()
    (cluster.submit / "plan/run/FINISHED").touch()
    done = cluster.run(text)
    assert done.returncode == 0 and "already finished" in done.stdout
    assert not (cluster.record / "srun").exists()


def test_another_output_directory_has_its_own_marker(cluster: FakeCluster) -> None:
    text = written(cluster, PLANS["zero3"])
    (cluster.submit / "plan/run").mkdir()
    (cluster.submit / "plan/run/FINISHED").touch()
    for arguments in (("--output-dir", "other run"), ("--output-dir=other run",)):
        done = cluster.run(text, *arguments, FAKE_TORCHRUN="finish", FAKE_OUTPUT=str(cluster.submit / "other run"))
        assert done.returncode == 0 and "finished: other run/FINISHED" in done.stdout
        assert cluster.words("torchrun.0")[-len(arguments) :] == list(arguments)
        (cluster.submit / "other run/FINISHED").unlink()


def stop_while_running(cluster: FakeCluster, mode: str, **environment: str) -> tuple[int, str, str]:
    process = cluster.start(
        written(cluster, PLANS["zero3"]),
        FAKE_TORCHRUN=mode,
        FAKE_OUTPUT=str(cluster.submit / "plan/run"),
        **environment,
    )
    cluster.wait_for("ready.0")
    cluster.wait_for("ready.1")
    started = time.monotonic()
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=120)
    assert time.monotonic() - started < 40, "the trap did not run while srun did"
    return process.returncode, out, err


def test_a_stop_request_reaches_the_workers_and_requeues(cluster: FakeCluster) -> None:
    code, out, err = stop_while_running(cluster, "wait")
    assert code == 0, err
    assert (cluster.record / "usr1.0").exists() and (cluster.record / "usr1.1").exists()
    assert (cluster.submit / "plan/run/STOP").exists()
    assert (cluster.record / "requeue").read_text().split() == ["1234567"]
    assert "srun returned 1, stop requested: 1" in out


def test_a_stop_request_to_a_run_that_finishes_does_not_requeue(cluster: FakeCluster) -> None:
    code, out, _ = stop_while_running(cluster, "wait-finish")
    assert code == 0 and "finished" in out
    assert not (cluster.record / "requeue").exists()


def test_requeueing_has_an_end(cluster: FakeCluster) -> None:
    code, _, err = stop_while_running(cluster, "wait", SLURM_RESTART_COUNT="50")
    assert code == 1 and "50 restarts are enough" in err
    assert not (cluster.record / "requeue").exists()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, "Slurm gave 4 GPUs, the plan needs 8"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "4 GPUs are visible (0,1,2,3), the plan needs 8"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,6"}, "GPU 6 is visible twice"),
        ({"FAKE_LOCALID": "1"}, "two tasks were started on one node"),
    ],
)
def test_a_node_that_is_not_the_planned_one_stops_the_job(
    cluster: FakeCluster, environment: dict[str, str], words: str
) -> None:
    done = cluster.run(written(cluster, PLANS["zero3"]), **environment)
    assert done.returncode == 2 and words in done.stderr
    assert not (cluster.record / "torchrun.0").exists()


def test_all_gpus_of_the_plan_are_enough(cluster: FakeCluster) -> None:
    done = cluster.run(written(cluster, PLANS["zero3"]), CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7")
    assert done.returncode == 0 and "GPU-7" in done.stdout


def test_a_job_of_another_size_stops_before_it_starts(cluster: FakeCluster) -> None:
    done = cluster.run(written(cluster, PLANS["zero3"]), SLURM_JOB_NUM_NODES="3")
    assert done.returncode == 2 and "the job has 3 nodes, the plan needs 2" in done.stderr
    assert not (cluster.record / "srun").exists()


def test_processors_need_no_gpus(cluster: FakeCluster) -> None:
    done = cluster.run(written(cluster, PLANS["tiny"]), SLURM_JOB_NUM_NODES="1", SLURM_GPUS_ON_NODE="")
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node=2" in cluster.words("torchrun.0")


def test_a_missing_plan_is_told(cluster: FakeCluster) -> None:
    done = cluster.run(slurm.batch_script(PLANS["zero3"], script.files_of(PLANS["zero3"], "/nowhere/plan")))
    assert done.returncode == 2 and "there is no /nowhere/plan/plan.json" in done.stderr


def test_missing_software_is_told(cluster: FakeCluster) -> None:
    text = written(cluster, PLANS["zero3"])
    (cluster.directory / "bin/torchrun").unlink()
    done = cluster.run(text)
    assert done.returncode == 2 and "torchrun is not on PATH" in done.stderr


def test_modules_and_setup_command(cluster: FakeCluster) -> None:
    plan = on_site(modules=("cuda/12.4", "gcc"), setup_command='export FROM_SETUP="$HOME/x y"')
    done = cluster.run(written(cluster, plan))
    assert done.returncode == 0, done.stderr
    assert cluster.words("module") == ["load", "cuda/12.4", "gcc"]
    assert cluster.seen_environment()["FROM_SETUP"] == f"{cluster.directory}/x y"


def test_a_setup_command_that_fails_stops_the_job(cluster: FakeCluster) -> None:
    done = cluster.run(written(cluster, on_site(setup_command="false")))
    assert done.returncode == 1 and not (cluster.record / "srun").exists()


# --- containers ------------------------------------------------------------------------------------

IMAGE = "docker://nvcr.io#nvidia/pytorch:25.01-py3"


def test_pyxis(cluster: FakeCluster) -> None:
    plan = on_site(
        container_runtime="pyxis",
        container_image=IMAGE,
        container_mounts=("/data:/data:ro", "/a b:/c"),
        environment={"NCCL_DEBUG": "WARN"},
    )
    (cluster.directory / "bin/torchrun").rename(cluster.directory / "bin/torchrun_of_the_image")
    text = written(cluster, plan)
    done = cluster.run(text)
    words = cluster.words("srun")
    assert f"--container-image={IMAGE}" in words
    assert f"--container-mounts={cluster.submit}:{cluster.submit},/data:/data:ro,/a b:/c" in words
    assert f"--container-workdir={cluster.submit}" in words
    names = next(word for word in words if word.startswith("--container-env=")).partition("=")[2].split(",")
    assert {"NCCL_DEBUG", "OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"} <= set(names)
    assert "torchrun is not on PATH" not in done.stderr  # the image has it, not the host


def test_apptainer(cluster: FakeCluster) -> None:
    plan = on_site(container_runtime="apptainer", container_image="/images/a b.sif", container_mounts=("/data:/data",))
    done = cluster.run(written(cluster, plan))
    assert done.returncode == 0, done.stderr
    submit = cluster.submit
    bind = f"{submit}:{submit},/data:/data"
    launcher = ["python3", "-m", "toolkit.runtime.torchrun", "plan/run"]  # the program brings the toolkit along
    expected = ["exec", "--nv", "--bind", bind, "--pwd", str(submit), "/images/a b.sif", *launcher, "--nnodes=2"]
    assert cluster.words("apptainer")[:12] == expected
    assert cluster.words("torchrun.1")[:2] == ["--nnodes=2", "--nproc-per-node=8"]


def test_apptainer_on_amd() -> None:
    cluster = msgspec.structs.replace(plans.DGX, accelerator=plans.MI300X)
    cluster = plans.with_site(cluster, container_runtime="apptainer", container_image="x.sif")
    text = slurm.batch_script(plans.plan("p", plans.LLAMA_8B, cluster, zero_stage=2), script.Files(directory="/p"))
    assert "container_gpus=(--rocm)" in text and "--nv" not in text


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"container_runtime": "docker", "container_image": "x"}, "container_runtime 'docker'"),
        ({"container_runtime": "pyxis"}, "give both, or neither"),
        ({"container_image": "x"}, "give both, or neither"),
        ({"container_runtime": "pyxis", "container_image": "x", "container_mounts": ("/a,/b",)}, "has a comma"),
        ({"container_runtime": "pyxis", "container_image": "--x"}, "starts with a dash"),
        ({"modules": ("--force",)}, "starts with a dash"),
        ({"setup_command": "a\nb"}, "write it on one line"),
    ],
)
def test_a_site_that_contradicts_itself_is_refused(site: dict, words: str) -> None:
    with pytest.raises(ToolkitError, match=re.escape(words)):
        slurm.batch_script(on_site(**site), script.Files(directory="/p"))
