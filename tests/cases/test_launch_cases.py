"""Published troubles of launching, each through the public command: its own script, and others of its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from toolkit.check.facts import Facts
from toolkit.cli.main import group

HEAD = "#!/bin/bash\n#SBATCH --requeue\n#SBATCH --open-mode=append\n"
PORT = "$((20000 + SLURM_JOB_ID % 10000))"


class Told:
    """What ``toolkit check --json`` said."""

    def __init__(self, code: int, document: dict[str, Any]) -> None:
        self.code, self.document = code, document
        self.findings: list[dict[str, str]] = document["findings"]

    def of(self, code: str) -> list[dict[str, str]]:
        return [each for each in self.findings if each["code"] == code]

    def one(self, code: str) -> dict[str, str]:
        found = self.of(code)
        assert len(found) == 1, self.findings
        assert found[0]["why"] and found[0]["remedy"] and found[0]["source"]
        return found[0]

    @property
    def errors(self) -> set[str]:
        return {each["code"] for each in self.findings if each["severity"] == "error"}


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(text: str, *options: str, name: str = "train.sbatch", **others: str) -> Told:
        files = {name: text} | {other.replace("__", "."): body for other, body in others.items()}
        for path, body in files.items():
            Path(path).write_text(body)
        done = CliRunner().invoke(group, ["check", *files, *options, "--json"], catch_exceptions=False)
        assert done.exit_code in (0, 1), done.output
        told = Told(done.exit_code, json.loads(done.stdout))
        assert bool(told.errors) == (told.code == 1)
        return told

    return run


def sbatch(*lines: str, head: str = HEAD) -> str:
    return head + "".join(f"{line}\n" for line in lines)


# --- E01: copies of a bare srun; tasks times workers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "each", "nodes", "copies"), [(128, 16, 1, 8), (96, 16, 1, 6), (100, 16, 1, 6), (128, 32, 2, 8)]
)
def test_e01_a_bare_srun_on_a_whole_node_starts_as_many_copies_as_fit(
    check: Any, cpus: int, each: int, nodes: int, copies: int
) -> None:
    script = sbatch(f"#SBATCH --nodes={nodes}", "#SBATCH --exclusive", f"#SBATCH --cpus-per-task={each}", "srun train")
    told = check(script, "--node-cpus", str(cpus))
    assert f"starts {copies} copies of train" in told.one("tasks-not-pinned")["message"]
    assert told.one("tasks-not-pinned")["severity"] == "error"
    assert told.one("tasks-not-pinned")["where"] == "line 7"
    assert told.document["steps"][0]["tasks"] == copies
    assert "floor(CPUs / cpus-per-task)" in check(script).one("tasks-not-pinned")["message"]


@pytest.mark.parametrize("pin", ["--ntasks-per-node=1", "--ntasks=1", "-n1"])
def test_e01_a_pinned_step_is_one_copy(check: Any, pin: str) -> None:
    head = ("#SBATCH --nodes=1", "#SBATCH --exclusive", "#SBATCH --cpus-per-task=16")
    told = check(sbatch(*head, f"srun {pin} train"), "--node-cpus", "128")
    assert not told.of("tasks-not-pinned")
    assert told.document["steps"][0]["tasks"] == 1


@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun --nproc_per_node=8 train.py",
        "torchrun --nproc-per-node 8 train.py",
        "python -m torch.distributed.run --nproc_per_node=8 train.py",
        "python3 -u -m torch.distributed.launch --nproc_per_node 8 train.py",
        'bash -c "torchrun --nproc_per_node=8 train.py"',
        "apptainer exec --nv image.sif torchrun --nproc_per_node=8 train.py",
        "env A=1 torchrun --nproc_per_node=$GPUS train.py",
    ],
)
@pytest.mark.parametrize("where", ["directive", "srun"])
def test_e01_torchrun_in_each_of_eight_tasks_is_64_processes(check: Any, launcher: str, where: str) -> None:
    asked = "--ntasks-per-node=8"
    lines = ["#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "GPUS=8"]
    lines.insert(2, f"#SBATCH {asked}") if where == "directive" else None
    told = check(sbatch(*lines, f"srun {asked if where == 'srun' else ''} {launcher}"))
    found = told.one("tasks-times-workers")
    assert found["severity"] == "error" and "64 processes on a node" in found["message"]
    assert told.document["steps"][0]["processes_per_node"] == 64


def test_e01_one_launcher_a_node_and_one_python_a_gpu_are_right(check: Any) -> None:
    lines = ("#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8")
    for tasks, command in ((1, f"torchrun --standalone --nproc_per_node=8 t.py --port {PORT}"), (8, "python t.py")):
        told = check(sbatch(*lines, f"#SBATCH --ntasks-per-node={tasks}", f"srun {command}"))
        assert not {"tasks-times-workers", "tasks-not-pinned"} & {each["code"] for each in told.findings}
        assert told.document["steps"][0]["processes_per_node"] == 8


# --- E03: node ranks, variables that do not exist ---------------------------------------------------------------------


def test_e03_node_rank_from_the_task_id_with_four_tasks_a_node(check: Any) -> None:
    command = "srun bash -c 'torchrun --nnodes=2 --nproc_per_node=1 --node_rank=$SLURM_PROCID --master_addr=$H t.py'"
    told = check(sbatch("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4", command))
    found = told.one("node-rank-task")
    assert found["severity"] == "error" and "SLURM_NODEID" in found["remedy"]
    one = check(sbatch("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", command))
    assert one.one("node-rank-task")["severity"] == "warning"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("SLURM_JOB_NUMNODES", "SLURM_JOB_NUM_NODES"),
        ("SLURM_NUM_NODES", "SLURM_JOB_NUM_NODES"),
        ("SLURM_JOB_NODELSIT", "SLURM_JOB_NODELIST"),
        ("SLURM_PROC_ID", "SLURM_PROCID"),
        ("SLURM_GPU_ON_NODE", "SLURM_GPUS_ON_NODE"),
        ("SLURM_LOCAL_ID", "SLURM_LOCALID"),
        ("SLURM_LOCAL_RANK", "SLURM_LOCALID"),
        ("SLURM_NODE_ID", "SLURM_NODEID"),
        ("SLURM_CPU_PER_TASK", "SLURM_CPUS_PER_TASK"),
    ],
)
@pytest.mark.parametrize("form", ["export NNODES=${}", 'echo "${{{}}}"', "srun bash -c 'echo ${}'"])
def test_e03_variables_that_slurm_does_not_set(check: Any, wrong: str, right: str, form: str) -> None:
    found = check(sbatch("#SBATCH --nodes=2", form.format(wrong))).one("slurm-variable")
    assert wrong in found["message"] and right in found["remedy"] and found["where"] == "line 5"


@pytest.mark.parametrize("name", ["SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NODEID", "SLURM_GPUS_ON_NODE"])
def test_e03_variables_that_it_sets(check: Any, name: str) -> None:
    assert not check(sbatch("#SBATCH --nodes=2", f"echo ${name}")).of("slurm-variable")


@pytest.mark.parametrize(
    ("command", "early"),
    [
        ("srun torchrun --node_rank=$SLURM_NODEID {} t.py", True),
        ('srun bash -c "torchrun --node_rank=$SLURM_NODEID {} t.py"', True),
        ("export NODE_RANK=$SLURM_NODEID\nsrun torchrun --node_rank=$NODE_RANK {} t.py", True),
        ('L="torchrun --node_rank $SLURM_PROCID {}"\nsrun bash -c "$L t.py"', True),
        ("srun accelerate launch --machine_rank $SLURM_NODEID --num_machines 2 t.py", True),
        ("srun bash -c 'torchrun --node_rank=$SLURM_NODEID {} t.py'", False),
        ('srun bash -c "torchrun --node_rank=\\$SLURM_NODEID {} t.py"', False),
        ('L="torchrun --node_rank \\$SLURM_NODEID {}"\nsrun bash -c "$L t.py"', False),
        ("srun bash <<'END'\ntorchrun --node_rank=$SLURM_NODEID {} t.py\nEND", False),
        ("srun bash <<END\ntorchrun --node_rank=$SLURM_NODEID {} t.py\nEND", True),
        ("cat > run.sh <<'END'\ntorchrun --node_rank=$SLURM_NODEID {} t.py\nEND\nsrun bash run.sh", False),
        ("srun run_node.sh", False),
    ],
)
def test_e03_a_rank_is_expanded_on_its_node(check: Any, command: str, early: bool) -> None:
    flags = "--nnodes=2 --nproc_per_node=8 --master_addr=$MASTER_ADDR"
    head = ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-node=8", f"MASTER_PORT={PORT}")
    inner = f"torchrun --node_rank=$SLURM_NODEID {flags} t.py\n"
    told = check(sbatch(*head, command.replace("{}", flags)), run_node__sh=inner)
    mine = [each for each in told.of("expanded-early") if each["file"] == "train.sbatch"]
    assert bool(mine) == early, told.findings


def test_e03_the_count_of_nodes_is_no_local_world_size(check: Any) -> None:
    lines = ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-node=8")
    for line in ("export LOCAL_WORLD_SIZE=$SLURM_JOB_NUM_NODES", "srun torchrun --nproc_per_node=$SLURM_NNODES t.py"):
        assert "SLURM_GPUS_ON_NODE" in check(sbatch(*lines, line)).one("world-size")["remedy"]
    told = check(sbatch(*lines, "export WORLD_SIZE=$SLURM_NTASKS", "srun torchrun --standalone t.py"))
    assert told.one("world-size")["severity"] == "error"


# --- E05: two kinds of rendezvous ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "mixed"),
    [
        ("--master_addr A --master_port 15472 --rdzv_backend c10d --rdzv_endpoint A:15472", True),
        ("--master-addr=A --rdzv-backend=c10d --rdzv-endpoint=A:15472", True),
        ("--rdzv_backend c10d --rdzv_endpoint A:15472 --node_rank 0", True),
        ("--rdzv_backend c10d --rdzv_endpoint A:15472", False),
        ("--master_addr A --master_port 15472 --node_rank 0", False),
    ],
)
def test_e05_master_flags_beside_rendezvous_flags(check: Any, flags: str, mixed: bool) -> None:
    told = check(f"#!/bin/bash\ntorchrun --nnodes 2 --nproc_per_node 2 {flags} train.py\n", name="run.sh")
    assert bool(told.of("rendezvous-mixed")) == mixed
    if mixed:
        assert told.one("rendezvous-mixed")["severity"] == "warning"
        assert "rank 0" in told.one("rendezvous-mixed")["why"]


@pytest.mark.parametrize(
    "line",
    [
        "MASTER_PORT=29500",
        "export MASTER_PORT=${MASTER_PORT:-6000}",
        "srun torchrun --rdzv_backend=c10d --rdzv_endpoint=$HOST:29400 --nnodes=1 t.py",
        "srun accelerate launch --main_process_port 29500 t.py",
        "srun torchrun t.py",
    ],
)
def test_e05_a_port_that_jobs_share(check: Any, line: str) -> None:
    head = ("#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-node=2")
    assert check(sbatch(*head, line)).one("fixed-port")["severity"] == "error"
    assert check(sbatch(*head, "#SBATCH --exclusive", line)).one("fixed-port")["severity"] == "warning"
    assert not check(sbatch(*head, f"MASTER_PORT={PORT}")).of("fixed-port")


# --- E07: hostfiles --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("10.0.0.1 slots=8\n10.0.0.2 lots=8\n", 2, ("'lots=8'", "slots=8")),
        ("# head\n\nn1 slots=8\nn2 slot=4\n", 4, ("'slot=4'", "slots=4")),
        ("n1 slots=8\nn2 8\n", 2, ("'8'",)),
        ("n1 slots=8\nn2\n", 2, ("no slots",)),
        ("n1 slots=8\nn1 slots=8\n", 2, ("line 1",)),
        ("n1 slots=8\nn2 slots=0\n", 2, ("0 slots",)),
        ("n1 slots=8\nn2 slots=-1\n", 2, ("no whole number",)),
        ("n1 slots=8\nn2 slots = 8\n", 2, ("blanks",)),
        ("n1 slots=8\nuser@10.0.0.2 slots=2\n", 2, ("user",)),
        ("n[1-4] slots=8\n", 1, ("node list",)),
        ("n1:8\n", 1, ("MPI",)),
        ("n1 slots=16\n", 1, ("16 slots",)),
    ],
)
def test_e07_the_line_and_the_token_are_named(check: Any, text: str, line: int, words: tuple[str, ...]) -> None:
    told = check(text, "--gpus-per-node", "8", name="hostfile")
    found = [each for each in told.of("hostfile-line") if each["where"] == f"line {line}"]
    assert found and all(any(word in each["message"] + each["remedy"] for each in found) for word in words)
    assert told.code == 1


def test_e07_a_right_hostfile_has_nothing_and_its_sum_is_compared(check: Any) -> None:
    text = "# two nodes\nn1 slots=8\nn2  slots=8\n\n"
    assert check(text, "--gpus", "16", name="myhosts").findings == []
    assert "16 slots" in check(text, "--gpus", "32", name="hostfile").one("hostfile-line")["message"]


def test_e07_a_hostfile_that_is_not_there_relative_or_an_argument_of_the_script(check: Any) -> None:
    told = check("#!/bin/bash\ndeepspeed --hostfile=hostfile_1234 train.py\n", name="run.sh")
    assert told.one("hostfile-missing")["severity"] == "error"
    assert "only warns" in told.one("hostfile-missing")["why"]
    there = check("#!/bin/bash\ndeepspeed --hostfile=hostfile_1234 t.py\n", name="run.sh", hostfile_1234="n1 slots=8\n")
    assert there.one("hostfile-relative")["severity"] == "warning" and not there.errors
    late = check("#!/bin/bash\ndeepspeed train.py --hostfile=hostfile_1234\n", name="run.sh")
    assert late.one("hostfile-place")["severity"] == "error"
    guarded = "#!/bin/bash\n[ -r hostfile ] || exit 2\ndeepspeed --hostfile=hostfile t.py\n"
    assert check(guarded, name="run.sh", hostfile="n1 slots=8\n").findings == []


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ("--include n1:0,1", False),
        ("--include n3:0", True),
        ("--include n1:0,8", True),
        ("--include n1 --exclude n2", True),
        ("--include n1 --num_gpus 2", True),
        ("--num_nodes 3", True),
        ("--num_nodes 2", False),
    ],
)
def test_e07_filters_are_about_hosts_and_slots_that_there_are(check: Any, flags: str, wrong: bool) -> None:
    script = f"#!/bin/bash\ndeepspeed --hostfile hostfile {flags} train.py\n"
    told = check(script, name="run.sh", hostfile="n1 slots=8\nn2 slots=8\n")
    assert bool(told.of("include-filter")) == wrong


# --- E09, E11: what a task sees of the GPUs ---------------------------------------------------------------------------


def test_e09_one_gpu_a_task(check: Any) -> None:
    head = ("#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=8", "#SBATCH --gpus-per-task=1")
    for body in ((), ("srun python train.py",), ("export LOCAL_RANK=$SLURM_LOCALID", "srun python train.py")):
        found = check(sbatch(*head, *body)).one("device-index")
        assert found["severity"] == "error" and "--gres=gpu:8" in found["remedy"] and "peer access" in found["why"]
    inside = check(sbatch(*head[:2], "srun --gpus-per-task=1 python train.py")).one("device-index")
    assert inside["where"] == "line 6"


@pytest.mark.parametrize("ask", ["--gpus-per-node=8", "--gres=gpu:8", "--gres=gpu:h100:8"])
def test_e09_all_gpus_for_all_tasks(check: Any, ask: str) -> None:
    told = check(sbatch("#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=8", f"#SBATCH {ask}", "srun python train.py"))
    assert not {"device-index", "tasks-and-gpus", "gpus-of-the-job"} & {each["code"] for each in told.findings}


def test_e09_a_launcher_with_one_gpu_and_gpus_of_the_job(check: Any) -> None:
    head = ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1")
    told = check(sbatch(*head, "#SBATCH --gpus-per-task=1", "srun torchrun --nproc_per_node=8 t.py"))
    assert "8 workers" in told.one("device-index")["message"]
    told = check(sbatch(*head, "#SBATCH --gpus=8", "srun torchrun --nproc_per_node=8 t.py"))
    assert told.one("gpus-of-the-job")["severity"] == "error"
    assert told.one("gpus-of-the-job")["remedy"] == "--gpus-per-node=8"
    told = check(sbatch(*head, "#SBATCH -G 16", "srun torchrun --nproc_per_node=8 t.py"))
    assert told.one("gpus-of-the-job")["severity"] == "warning"


@pytest.mark.parametrize("bind", ["closest", "single:1", "per_task:1", "map_gpu:0,1,2,3", "verbose,closest"])
@pytest.mark.parametrize("where", ["srun", "directive"])
def test_e11_gpus_bound_to_tasks(check: Any, bind: str, where: str) -> None:
    own, job = (f"--gpu-bind={bind}", ()) if where == "srun" else ("", (f"#SBATCH --gpu-bind={bind}",))
    script = sbatch("#SBATCH --nodes=1", *job, f"srun --ntasks-per-node=4 --gpus-per-node=4 {own} python train.py")
    found = check(script).one("gpu-bind")
    assert "world size" in found["remedy"] and "uuid" in found["remedy"]
    assert not check(script.replace(bind, "none")).of("gpu-bind")


# --- E13: preparing data while the others wait ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "rate", "timeout", "needed", "late"),
    [
        (2_969_526, 155.57, 1800, 19_088, True),
        (2_969_526, 155.57, 180_000, 19_088, False),
        (100_000, 200.0, 600, 500, False),
        (100_000, 100.0, None, 1_000, True),  # NCCL's own 600 s
        (100_000, 100.0, 1800, 1_000, False),
    ],
)
def test_e13_samples_over_rate_against_the_time_out(
    check: Any, samples: int, rate: float, timeout: int | None, needed: int, late: bool
) -> None:
    script = sbatch("#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=4", "srun python train.py")
    given = ["--samples", str(samples), "--samples-per-second", str(rate)]
    told = check(script, *given, *(["--timeout-seconds", str(timeout)] if timeout else []))
    assert told.document["derived"]["preparing_seconds"] == pytest.approx(needed, abs=1.0)
    assert bool(told.of("preparation")) == late
    if late:
        assert f"{needed:,} s" in told.one("preparation")["message"]
        assert "every process group" in told.one("preparation")["remedy"]


def test_e13_the_time_out_of_the_script_itself(check: Any) -> None:
    given = ("--samples", "2969526", "--samples-per-second", "155.57")
    for flags, late in (("--ddp_timeout 1800", True), ("--ddp_timeout 180000", False),
                        ("--distributed-timeout-minutes=30", True)):  # fmt: skip
        told = check(sbatch("#SBATCH --ntasks-per-node=1", f"srun torchrun --standalone t.py {flags}"), *given)
        assert bool(told.of("preparation")) == late


# --- E15: GPUs of a node ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "per_node", "cap", "nodes"), [(64, 4, 0, 16), (64, 16, 0, 4), (8, 8, 4, 2), (64, 8, 0, 8), (10, 4, 0, 3)]
)
def test_e15_nodes_of_a_request(gpus: int, per_node: int, cap: int, nodes: int) -> None:
    assert Facts(gpus=gpus, gpus_per_node=per_node, max_gpus_per_node=cap).nodes == nodes


def test_e15_a_node_does_not_give_what_it_has_not(check: Any) -> None:
    script = sbatch("#SBATCH --nodes=8", "#SBATCH --gpus-per-node=8", "#SBATCH --ntasks-per-node=1")
    found = check(script, "--gpus-per-node", "4").one("gpus-of-a-node")
    assert "--nodes=16 --gpus-per-node=4" in found["remedy"]
    one = sbatch("#SBATCH --nodes=1", "#SBATCH --gres=gpu:8")
    found = check(one, "--gpus-per-node", "8", "--max-gpus-per-node", "4", "--gpus", "8").one("gpus-of-a-node")
    assert "4 of the 8" in found["message"] and "--nodes=2 --gpus-per-node=4" in found["remedy"]
    assert not check(one, "--gpus-per-node", "8").errors
    few = check(sbatch("#SBATCH --nodes=4", "#SBATCH --gpus-per-node=4"), "--gpus", "64", "--gpus-per-node", "4")
    assert few.one("node-count")["remedy"].startswith("--nodes=16")


def test_e15_the_sizes_and_the_cap_of_a_cluster(check: Any, tmp_path: Path) -> None:
    script = sbatch("#SBATCH --nodes=1", "#SBATCH --gpus-per-node=8")
    assert check(script, "--cluster", "gb200-nvl72").one("gpus-of-a-node")["severity"] == "error"
    assert not check(script, "--cluster", "dgx-h100").of("gpus-of-a-node")
    assert check(script, "--cluster", "dgx-2", "--gpus", "64").document["derived"]["nodes"] == 4
    assert check(script, "--cluster", "gb200-nvl72", "--gpus", "64").document["derived"]["nodes"] == 16
    Path("site.toml").write_text(
        'name = "site"\naccelerator = "h100"\ngpus_per_node = 8\n[site]\nmax_gpus_per_node = 4\n'
    )
    capped = check(script, "--cluster", "site.toml", "--gpus", "8")
    assert capped.document["derived"]["nodes"] == 2 and capped.of("gpus-of-a-node")


def test_e15_tensor_parallelism_stays_inside_the_fast_link(check: Any) -> None:
    head = ("#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=4", "#SBATCH --gpus-per-node=4")
    script = sbatch(*head, "srun python pretrain.py --tensor-model-parallel-size 8")
    assert check(script, "--gpus-per-node", "4").one("tensor-parallel")
    assert not check(script, "--cluster", "gb200-nvl72").of("tensor-parallel")  # 72 GPUs on one NVLink


# --- F11: the signal before the time limit ----------------------------------------------------------------------------


TORCHRUN = "srun --kill-on-bad-exit=1 torchrun --nproc-per-node=8 --standalone train.py"
TIMES = ("--step-seconds", "20", "--save-seconds", "90")


def test_f11_a_signal_that_only_torchrun_gets(check: Any) -> None:
    head = ("#SBATCH --ntasks-per-node=1", "#SBATCH --time=24:00:00", "#SBATCH --signal=USR2@600")
    told = check(sbatch(*head, TORCHRUN), *TIMES)
    assert told.one("signal-to-steps")["severity"] == "error" and "B:USR2@600" in told.one("signal-to-steps")["remedy"]
    assert not told.of("signal-lead")
    assert not check(sbatch(*head, TORCHRUN.replace("torchrun", "torchrun --signals-to-handle=SIGTERM,SIGUSR2"))).of(
        "signal-to-steps"
    )
    assert not check(sbatch(*head[:2], "#SBATCH --signal=TERM@600", TORCHRUN)).of("signal-to-steps")


@pytest.mark.parametrize(("lead", "enough"), [(60, False), (109, False), (110, True), (120, True), (600, True)])
def test_f11_step_and_save_before_the_kill(check: Any, lead: int, enough: bool) -> None:
    head = ("#SBATCH --ntasks-per-node=8", "#SBATCH --time=24:00:00", f"#SBATCH --signal=USR1@{lead}")
    told = check(sbatch(*head, "srun python train.py"), *TIMES)
    assert told.document["derived"]["lead_seconds"] == 110.0
    assert told.document["derived"]["recommended_lead_seconds"] >= 120
    assert bool(told.of("signal-lead")) != enough


def test_f11_the_batch_shell_has_to_hear_it(check: Any) -> None:
    head = ("#SBATCH --ntasks-per-node=8", "#SBATCH --time=01:00:00", "#SBATCH --signal=B:USR1@120")
    assert check(sbatch(*head, "srun python train.py")).one("signal-unheard")["severity"] == "error"
    trap = "trap 'kill -USR1 $pid' USR1"
    assert check(sbatch(*head, trap, "srun python train.py")).one("signal-late")["severity"] == "error"
    right = check(sbatch(*head, trap, "srun python train.py &", "pid=$!", "wait $pid"))
    assert not {"signal-unheard", "signal-late"} & {each["code"] for each in right.findings}
    short = (head[0], "#SBATCH --time=00:02:00", head[2])
    assert "at the start" in check(sbatch(*short, trap, "srun python t.py &", "wait")).one("signal-lead")["message"]
    passed = check(sbatch("#SBATCH --ntasks-per-node=1", *head[1:], trap, f"{TORCHRUN} &", "pid=$!", "wait"))
    assert passed.one("signal-to-steps")["severity"] == "error"  # srun hands it to torchrun, which dies
