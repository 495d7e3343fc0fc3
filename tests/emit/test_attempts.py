"""What the batch script does with each way in which an attempt can end: again, requeue, without a node, or stop."""

import json
from pathlib import Path

import pytest

from tests import plans
from tests.emit.fake_cluster import FakeCluster
from tests.emit.test_slurm import written
from toolkit.emit import script, slurm

PLAN = plans.all_plans()["zero3"]
RUN = "plan/run"
# what the ranks of recipes write, by toolkit.runtime.outcome: here one rank on each node
WORDS = """
folder=plan/run/.attempt/$TOOLKIT_ATTEMPT
attempt=${TOOLKIT_ATTEMPT##*-}
echo "here n$((node + 1))" >"$folder/$node"
say() { echo "$*" >>"$folder/$node"; }
saved() { if [ "$node" = 0 ]; then echo "checkpoint-$1" >plan/run/latest; fi; }
killed() { exit 1; }
peer() { say failed peer; outcome failed peer "connection closed by peer"; exit 1; }
outcome() {
  [ ! -e plan/run/outcome.json ] || return 0
  {
    printf '{\\n  "state": "%s",\\n  "kind": "%s",\\n  "step": 7,\\n  "rank": %s,\\n' "$1" "$2" "$node"
    printf '  "node": "n%s",\\n  "reason": "%s",\\n  "attempt": "x"\\n}\\n' "$((node + 1))" "$3"
  } >plan/run/outcome.json
}
finish() { say left 0; touch plan/run/FINISHED; exit 0; }
"""


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "cluster")


def run(cluster: FakeCluster, text: str, **environment: str):
    (cluster.directory / "script").write_text(WORDS + text)
    return cluster.run(written(cluster, PLAN), FAKE_TORCHRUN="script", **environment)


def restarts(cluster: FakeCluster) -> list[dict]:
    path = cluster.submit / RUN / "restarts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def requeued(cluster: FakeCluster) -> bool:
    return (cluster.record / "requeue").exists()


def test_a_killed_rank_starts_again_in_the_allocation(cluster: FakeCluster) -> None:
    done = run(cluster, "case $attempt-$node in 0-1) killed ;; 0-0) peer ;; esac; finish")
    assert done.returncode == 0, done.stderr
    assert "rank 1 on n2 was killed" in done.stdout and "attempt 1" in done.stdout
    assert not requeued(cluster)
    (line,) = restarts(cluster)
    assert (line["job"], line["attempt"], line["result"], line["nodes"], line["then"]) == (
        *("1234567", 0, "fault", "n2"),
        "again",
    )


def test_each_attempt_meets_elsewhere(cluster: FakeCluster) -> None:
    done = run(
        cluster, 'cp "$RECORD/torchrun.$node" "$RECORD/attempt$attempt.$node"; [ $attempt = 1 ] || killed; finish'
    )
    assert done.returncode == 0, done.stderr
    words = [cluster.words(f"attempt{attempt}.0") for attempt in (0, 1)]
    meetings = [next(word for word in each if word.startswith("--rdzv-endpoint=")) for each in words]
    assert meetings[0] != meetings[1]
    assert "--rdzv-id=1234567-0-1" in words[1]


def test_a_node_that_kills_twice_is_left_out(cluster: FakeCluster) -> None:
    done = run(cluster, "saved $((attempt + 1)); [ $node = 1 ] && killed; peer", FAKE_EXCLUDED="n9")
    assert done.returncode == 0, done.stderr
    assert (cluster.record / "update").read_text().split() == ["update", "JobId=1234567", "ExcNodeList=n9,n2"]
    assert "requeue without n2: rank 1 on n2 was killed" in done.stdout
    assert [line["then"] for line in restarts(cluster)] == ["again", "requeue without n2"]


def test_a_broken_gpu_leaves_its_node_out_at_once(cluster: FakeCluster) -> None:
    fault = 'say failed device; outcome failed device "RuntimeError: CUDA error: uncorrectable ECC error"; exit 1'
    done = run(cluster, f"[ $node = 0 ] && {{ sleep 0.2; peer; }}; {fault}")
    assert done.returncode == 0, done.stderr
    assert "ExcNodeList=n2" in (cluster.record / "update").read_text()
    assert "rank 1 on n2, after step 7: RuntimeError: CUDA error: uncorrectable ECC error" in done.stdout


@pytest.mark.parametrize("kind", ["code", "input", "memory", "storage"])
def test_what_would_fail_again_stops(cluster: FakeCluster, kind: str) -> None:
    done = run(
        cluster,
        f'[ $node = 0 ] && {{ sleep 0.2; peer; }}; say failed {kind}; outcome failed {kind} "ValueError: no"; exit 1',
    )
    assert done.returncode == 1
    assert "not started again: it would fail again; rank 1 on n2, after step 7: ValueError: no" in done.stderr
    assert not requeued(cluster) and restarts(cluster)[0]["then"] == "stop"


def test_a_program_that_does_not_begin_stops(cluster: FakeCluster) -> None:
    done = run(cluster, 'rm -f "$folder/$node"; exit 1')
    assert done.returncode == 1 and not requeued(cluster)
    assert "a task ended with code 1, 0 processes had begun" in done.stderr


def test_without_progress_it_stops(cluster: FakeCluster) -> None:
    done = run(cluster, "saved 40; [ $node = 1 ] && killed; peer", MAX_ATTEMPTS="9")
    assert done.returncode != 0 or requeued(cluster)
    # the second fault of the node requeues; the requeued job finds the same step again
    done = run(cluster, "saved 40; [ $node = 1 ] && killed; peer", SLURM_RESTART_COUNT="1")
    assert done.returncode == 1, done.stdout
    assert "no checkpoint after step 40 in 2 more starts" in done.stderr
    assert [line["step"] for line in restarts(cluster)] == [40, 40, 40]


def test_another_job_begins_to_count_anew(cluster: FakeCluster) -> None:
    for job in ("1", "2", "3"):
        done = run(cluster, "saved 40; [ $node = 1 ] && killed; peer", SLURM_JOB_ID=job, MAX_ATTEMPTS="0")
        assert done.returncode == 0, done.stderr
    assert [line["job"] for line in restarts(cluster)] == ["1", "2", "3"]


def test_a_stop_of_the_ranks_themselves_requeues(cluster: FakeCluster) -> None:
    """Slurm's SIGTERM at preemption goes to the processes, not to the script."""
    done = run(cluster, 'say asked SIGTERM; say left 0; saved 9; [ $node = 1 ] || outcome stopped "" SIGTERM; exit 0')
    assert done.returncode == 0 and requeued(cluster), done.stderr
    assert not (cluster.record / "update").exists()
    assert "requeue: SIGTERM" in done.stdout


def test_a_run_that_ends_by_its_arguments_is_done(cluster: FakeCluster) -> None:
    done = run(cluster, 'say left 0; [ $node = 1 ] || outcome ended "" ""; exit 0')
    assert done.returncode == 0 and not requeued(cluster) and not restarts(cluster)


def test_witnesses_alone_start_again(cluster: FakeCluster) -> None:
    done = run(cluster, "[ $attempt = 0 ] && peer; finish")
    assert done.returncode == 0, done.stderr
    assert restarts(cluster)[0]["nodes"] == "" and not requeued(cluster)


def test_a_job_that_slurm_started_again_too_often_stops(cluster: FakeCluster) -> None:
    done = run(cluster, "finish", SLURM_RESTART_COUNT="51")
    assert done.returncode == 2 and "MAX_REQUEUES=50" in done.stderr
    done = run(cluster, "finish", SLURM_RESTART_COUNT="51", MAX_REQUEUES="60")
    assert done.returncode == 0


def test_checkpoints_as_often_as_advised_unless_told_otherwise(cluster: FakeCluster) -> None:
    from tests.golden_files import planned

    plan = planned("sft-tulu-3-8b", "dgx-h100", "64", {})
    assert plan.resilience is not None
    text = slurm.batch_script(plan, script.files_of(plan, "plan"))
    steps = plan.resilience.checkpoint_steps
    assert f"\nsave_steps={steps}\n" in text
    (cluster.submit / "plan").mkdir()
    (cluster.submit / "plan/plan.json").write_text("{}")
    cluster.run(text, "--save-steps", "7", SLURM_JOB_NUM_NODES="8")
    words = cluster.words("torchrun.0")
    given = [words[at + 1] for at, word in enumerate(words) if word == "--save-steps"]
    assert given == [str(steps), "7"]  # the program takes the last one


@pytest.mark.parametrize(("code", "bad"), [(0, ""), (76, "n2,n7"), (76, ""), (1, "")])
def test_a_check_of_the_nodes_before_the_start(cluster: FakeCluster, code: int, bad: str) -> None:
    check = cluster.directory / "bin" / "check"
    names = ",\n    ".join(f'"{name}"' for name in filter(None, bad.split(",")))
    verdict = f'{{\n  "exit_code": {code},\n  "bad_nodes": [\n    {names}\n  ],\n  "nodes": ["n1"]\n}}\n'
    check.write_text(f"#!/bin/bash\ncat >plan/run/preflight.json <<'X'\n{verdict}X\nexit {code}\n")
    check.chmod(0o755)
    text = written(cluster, PLAN)
    assert text.count("\npreflight=()") == 1  # one line is to be filled in
    (cluster.directory / "script").write_text(WORDS + "finish")
    done = cluster.run(text.replace("\npreflight=()", "\npreflight=(check)"), FAKE_TORCHRUN="script")
    assert (cluster.record / "torchrun.0").exists() == (code == 0)
    assert requeued(cluster) == bool(bad)
    if bad:
        assert f"ExcNodeList={bad}\n" in (cluster.record / "update").read_text()
    assert done.returncode == (0 if bad or code == 0 else code), done.stderr


def test_direct_srun(cluster: FakeCluster) -> None:
    python = cluster.directory / "bin/python3"
    python.write_text(
        '#!/bin/bash\nprintf "%s\\0" "$@" >"$RECORD/python.$RANK"\nenv -0 >"$RECORD/environment.$RANK"\n'
        "touch plan/run/FINISHED\n"
    )
    python.chmod(0o755)
    text = written(cluster, PLAN)
    text = slurm.batch_script(PLAN, script.files_of(PLAN, "plan"), "srun")
    done = cluster.run(text, SLURM_PROCID="13", SLURM_NTASKS="16")
    assert done.returncode == 0, done.stderr
    words = cluster.words("srun")
    assert {"--ntasks=16", "--ntasks-per-node=8", "--cpus-per-task=12"} <= set(words)
    assert cluster.words("python.13")[:2] == ["-m", "recipes.finetune.train"]
    found = cluster.seen_environment("13")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [found[name] for name in names] == ["13", "16", "0", "8", "n1", "24567"]


def test_directives_of_direct_srun() -> None:
    lines = slurm.directives(PLAN, "srun")
    assert "#SBATCH --ntasks-per-node=8" in lines
    assert "#SBATCH --signal=USR1@260" in lines  # to the processes: without B: the script would not get it
    tiny = plans.all_plans()["tiny"]
    assert "#SBATCH --cpus-per-task=1" in slurm.directives(tiny, "srun")
