"""What the batch script does with each way in which an attempt can end: again, requeue, without a node, or stop."""

import contextlib
import json
import re
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests import plans
from tests.emit.fake_cluster import FakeCluster
from tests.emit.test_slurm import written
from toolkit.emit import script, shell, slurm
from toolkit.runtime.hang import Place

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
    printf '  "node": "n%s",\\n  "reason": "%s",\\n  "attempt": "%s"\\n}\\n' "$((node + 1))" "$3" "$TOOLKIT_ATTEMPT"
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
    assert not requeued(cluster) and done.stderr == ""
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


@pytest.mark.parametrize(("kind", "code"), [("code", 1), ("input", 2), ("memory", 1), ("storage", 1), ("diverged", 78)])
def test_what_would_fail_again_stops(cluster: FakeCluster, kind: str, code: int) -> None:
    done = run(
        cluster,
        f'[ $node = 0 ] && {{ sleep 0.2; peer; }}; say failed {kind}; outcome failed {kind} "ValueError: no"; exit 1',
    )
    assert done.returncode == code  # as launch.sh does, whatever srun makes of the tasks that it ends then
    who = "" if kind == "input" else "rank 1 on n2, after step 7: "
    assert f"not started again: it would fail again; {who}ValueError: no\n" in done.stderr
    assert not requeued(cluster) and restarts(cluster)[0]["then"] == "stop"


def test_a_program_that_does_not_begin_stops(cluster: FakeCluster) -> None:
    done = run(cluster, 'rm -f "$folder/$node"; exit 1')
    assert done.returncode == 1 and not requeued(cluster)
    assert "a task ended with code 1, 0 processes had begun" in done.stderr


def test_a_task_that_was_refused_is_told_so(cluster: FakeCluster) -> None:
    """Too few GPUs, say: the node has said why."""
    done = run(cluster, 'rm -f "$folder/$node"; exit 2')
    assert done.returncode == 2 and not requeued(cluster)
    assert done.stderr.endswith("error: not started again: it would fail again; it was refused, see above\n")


def test_a_request_before_anything_has_begun_requeues(cluster: FakeCluster) -> None:
    done = run(cluster, 'rm -f "$folder/$node"; exit 75')
    assert done.returncode == 0 and requeued(cluster), done.stderr
    assert "requeue: asked before the program had begun" in done.stdout


def test_a_request_that_left_no_time_to_tell_requeues(cluster: FakeCluster) -> None:
    """The launcher ends with 0 then, so that it ends no other node's task."""
    done = run(cluster, "say asked SIGTERM; exit 0")
    assert done.returncode == 0 and requeued(cluster), done.stderr
    assert "requeue: SIGTERM, and ended before it had saved" in done.stdout


def test_the_signal_that_killed_is_told(cluster: FakeCluster) -> None:
    text = (
        '[ $node = 1 ] && { outcome failed peer "killed by SIGKILL (somebody)"; exit 1; }; sleep 0.3; say failed peer'
    )
    done = run(cluster, f"[ $attempt = 1 ] && finish; {text}; exit 1")
    assert done.returncode == 0, done.stderr
    assert "rank 1 on n2 was killed by SIGKILL (somebody)\n" in done.stdout


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


def check(cluster: FakeCluster, code: int, bad: str = "", **environment: str):
    """A start whose check of the nodes ends with this code; the verdict names the nodes in ``bad``."""
    names = ",\n    ".join(f'"{name}"' for name in filter(None, bad.split(",")))
    nodes = f'"bad_nodes": [\n    {names}\n  ],\n  "nodes": ["n1"]'
    verdict = f'{{\n  "run_id": "1234567-$restart",\n  "exit_code": {code},\n  {nodes}\n}}\n'
    write = f"restart=${{SLURM_RESTART_COUNT:-0}}\ncat >plan/run/preflight.json <<X\n{verdict}X\n" if code == 76 else ""
    (cluster.directory / "check").write_text(f"{write}exit {code}\n")
    return run(cluster, "finish", **environment)


@pytest.mark.parametrize(("code", "bad"), [(0, ""), (76, "n2"), (76, "n2,n7"), (76, ""), (1, ""), (2, "")])
def test_the_nodes_are_checked_before_the_start(cluster: FakeCluster, code: int, bad: str) -> None:
    done = check(cluster, code, bad)
    assert (cluster.record / "torchrun.0").exists() == (code == 0)
    assert requeued(cluster) == bool(bad)
    if bad:
        assert f"ExcNodeList={bad}\n" in (cluster.record / "update").read_text()
        assert f"requeue without {bad.replace(',', ' ')}: toolkit preflight names" in done.stdout
    elif code:
        assert f"not started again: toolkit preflight returned {code}" in done.stderr
    assert done.returncode == (0 if bad or code == 0 else code), done.stderr


def test_what_the_check_is_given(cluster: FakeCluster) -> None:
    done = cluster.run(written(cluster, PLAN), "--keep", "5", PREFLIGHT_OPTIONS="--skip clock  --time-limit 90")
    assert done.returncode == 0, done.stderr
    meeting = [word for word in cluster.words("torchrun.0") if word.startswith("--rdzv-endpoint=")]
    assert cluster.words("preflight.1")[2:] == [
        *("preflight", "plan/plan.json", "--output-dir", "plan/run", "--keep", "5"),
        *("--time-limit", "240", "--skip", "clock", "--time-limit", "90"),  # the last one counts
        *("--run-id", "1234567-0", "--rendezvous", meeting[0].partition("=")[2], "--hosts", "n1,n2"),
    ]
    # once on each node, with all of its processors: there is a process for each GPU
    assert {"--overlap", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=96"} < set(
        cluster.words("srun.preflight")
    )
    assert cluster.seen_environment("preflight")["OMP_NUM_THREADS"] == "8"  # the exports of the plan


def test_the_check_can_be_left_out(cluster: FakeCluster) -> None:
    done = check(cluster, 1, PREFLIGHT="0")
    assert done.returncode == 0 and not (cluster.record / "preflight.0").exists(), done.stderr


def test_the_check_is_made_again_before_each_attempt(cluster: FakeCluster) -> None:
    """Without the links where the culprit is known, which is a killed rank's node."""
    checks = cluster.record / "checks"
    (cluster.directory / "check").write_text('[ "$SLURM_NODEID" = 1 ] || echo "$*" >>"$RECORD/checks"\n')
    again = "[ $attempt = 0 ] && { [ $node = $SLURM_RESTART_COUNT ] && killed; peer; }; finish"
    for start in range(2):
        done = run(cluster, again, SLURM_RESTART_COUNT=str(start))
        assert done.returncode == 0 and "attempt 1" in done.stdout, done.stderr
        (cluster.submit / RUN / "FINISHED").unlink()
    lines = checks.read_text().splitlines()
    ids = [re.findall(r"--run-id (\S+)", line) for line in lines]
    assert ids == [["1234567-0"], ["1234567-0-1"], ["1234567-1"], ["1234567-1-1"]]
    assert ["--skip collective" in line for line in lines] == [False, True] * 2
    checks.unlink()
    done = run(cluster, "saved 9; [ $attempt = 0 ] && peer; finish", SLURM_RESTART_COUNT="2")  # witnesses alone
    assert done.returncode == 0 and "attempt 1" in done.stdout, done.stderr
    assert "--skip collective" not in checks.read_text()


def test_a_node_that_went_bad_is_found_before_the_next_attempt(cluster: FakeCluster) -> None:
    """Two failures without a newer checkpoint before do not end the job: that node was never left out."""
    verdict = '{\n "run_id": "1234567-0-2",\n "bad_nodes": [\n  "n2"\n ],\n "nodes": ["n1"]\n}\n'
    (cluster.directory / "verdict").write_text(verdict)
    found = f"cp {cluster.directory}/verdict plan/run/preflight.json; exit 76"
    (cluster.directory / "check").write_text(f'case $* in *"--run-id 1234567-0-2 "*) {found} ;; esac\n')
    done = run(cluster, "saved 4; peer", MAX_NO_PROGRESS="2", MAX_ATTEMPTS="9")
    assert done.returncode == 0, done.stderr
    assert "requeue without n2: toolkit preflight names n2" in done.stdout
    assert [(line["attempt"], line["result"], line["then"]) for line in restarts(cluster)] == [
        *((0, "fault", "again"), (1, "fault", "again"), (2, "preflight", "requeue without n2")),
    ]


@pytest.mark.parametrize("code", [1, 2])
def test_what_all_nodes_have_by_now_stops_before_the_next_attempt(cluster: FakeCluster, code: int) -> None:
    (cluster.directory / "check").write_text(f'case $* in *"--run-id 1234567-0-1 "*) exit {code} ;; esac\n')
    done = run(cluster, "peer")
    assert done.returncode == code and not requeued(cluster)
    assert f"not started again: toolkit preflight returned {code}" in done.stderr


def test_a_node_that_is_found_bad_again_and_again_stops_the_job(cluster: FakeCluster) -> None:
    """Slurm may refuse to exclude it, as where the job asks for it by name."""
    for start, bad in enumerate(("n2", "n2", "n3")):  # another one is another matter
        done = check(cluster, 76, bad, SLURM_RESTART_COUNT=str(start))
        assert done.returncode == 0, done.stderr
    done = check(cluster, 76, "n2", SLURM_RESTART_COUNT="3")
    assert done.returncode == 76 and "the same in 2 more starts (MAX_NO_PROGRESS)" in done.stderr


def test_the_verdict_of_an_earlier_start_is_not_this_ones(cluster: FakeCluster) -> None:
    check(cluster, 76, "n2")
    (cluster.directory / "check").write_text("exit 76\n")  # nothing is written: the disk is full
    done = run(cluster, "finish", SLURM_RESTART_COUNT="1")
    assert done.returncode == 76 and "returned 76, see above, and does not name a node" in done.stderr


def test_restarts_of_the_check_are_counted(cluster: FakeCluster) -> None:
    done = check(cluster, 76, "n2", SLURM_RESTART_COUNT="50")
    assert done.returncode == 76 and "50 restarts are enough" in done.stderr and not requeued(cluster)


@pytest.mark.parametrize("code", [138, 143])
def test_a_stop_request_to_the_check_requeues(cluster: FakeCluster, code: int) -> None:
    done = check(cluster, code)
    assert done.returncode == 0 and requeued(cluster), done.stderr
    assert [line["result"] for line in restarts(cluster)] == ["stopped"]


def test_a_stop_request_to_the_script_does_not_wait_for_the_check(cluster: FakeCluster) -> None:
    (cluster.directory / "check").write_text('touch "$RECORD/checking.$SLURM_NODEID"\nexec sleep 60\n')
    process = cluster.start(written(cluster, PLAN))
    for node in range(2):
        cluster.wait_for(f"checking.{node}")
    while process.poll() is None:  # the stand-in of srun may not know its second process yet
        process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and requeued(cluster), err
    assert not (cluster.record / "torchrun.0").exists()


def test_a_check_that_is_killed_is_made_again(cluster: FakeCluster) -> None:
    done = check(cluster, 137)
    assert done.returncode == 0 and requeued(cluster), done.stderr
    for start in ("1", "2"):
        done = check(cluster, 137, SLURM_RESTART_COUNT=start)
    assert done.returncode == 137 and "the same in 2 more starts" in done.stderr


@pytest.mark.parametrize(("runtime", "name"), [("apptainer", "apptainer.preflight"), ("pyxis", "srun.preflight")])
def test_the_check_runs_inside_the_container(cluster: FakeCluster, runtime: str, name: str) -> None:
    site = plans.with_site(PLAN.cluster, container_runtime=runtime, container_image="/images/x.sif")
    plan = msgspec.structs.replace(PLAN, cluster=site)
    done = cluster.run(written(cluster, plan))
    assert done.returncode == 0, done.stderr
    words = cluster.words(name)
    assert "/images/x.sif" in words or "--container-image=/images/x.sif" in words
    at = words.index("python3")
    assert words[at : at + 4] == ["python3", "-m", "toolkit", "preflight"]
    assert words[words.index("--time-limit") + 1] == "1200"  # images come to some nodes later than to others


# --- hangs, and requests to stop, for the caps ------------------------------------------------------

# what toolkit.runtime.watchdog leaves: a mark by the rank that noticed it, its place by each rank that could
PLACE = msgspec.json.encode(Place(rank=1, section="step", step=12, seconds=131.5, limit=120.0)).decode()
HANG = f"""mkdir -p plan/run/stacks; [ $node = 0 ] && sleep 0.1; echo '{PLACE}' >plan/run/stacks/HANG
stacks() {{ sleep 0.05; echo '{{}}' >plan/run/stacks/rank-$node.json; }}
"""


def test_a_hang_starts_again_and_is_told(cluster: FakeCluster) -> None:
    done = run(cluster, f"[ $attempt = 1 ] && finish; {HANG} stacks; exit 1")
    assert done.returncode == 0, done.stderr
    told = "rank 1 hung in step 12 for 131 s, its limit is 120 s; stacks are in plan/run/stacks"
    assert told in done.stdout and "was killed" not in done.stdout
    assert not requeued(cluster)
    (line,) = restarts(cluster)
    assert (line["result"], line["nodes"], line["then"]) == ("fault", "", "again")


def test_what_is_seen_of_a_hang_as_it_is_ended_is_not_its_cause(cluster: FakeCluster) -> None:
    done = run(cluster, f'[ $attempt = 1 ] && finish; {HANG} stacks; outcome failed agent "torchrun is gone"; exit 1')
    assert done.returncode == 0 and "rank 1 hung in step 12" in done.stdout, done.stderr
    assert restarts(cluster)[0]["nodes"] == ""


def test_hangs_without_progress_stop_the_job(cluster: FakeCluster) -> None:
    done = run(cluster, f"{HANG} stacks; exit 1")
    assert done.returncode == 77 and not requeued(cluster)
    assert "no checkpoint after step 0 in 2 more starts (MAX_NO_PROGRESS); rank 1 hung" in done.stderr


def test_a_node_without_stacks_is_left_out_the_second_time(cluster: FakeCluster) -> None:
    """Its process is stopped; stacks that an earlier hang left do not count."""
    done = run(
        cluster,
        f"mkdir -p plan/run/stacks; echo '{{}}' >plan/run/stacks/rank-1.json; sleep 0.1; touch $folder/$node\n"
        f"saved $((attempt + 1)); {HANG} [ $node = 0 ] && stacks; exit 1",
    )
    assert done.returncode == 0, done.stderr
    assert "no stacks of rank 1 on n2" in done.stdout
    assert [line["then"] for line in restarts(cluster)] == ["again", "requeue without n2"]


def test_a_cause_that_a_rank_names_counts_more_than_a_hang(cluster: FakeCluster) -> None:
    done = run(cluster, f'{HANG} stacks; say failed code; outcome failed code "ValueError: no"; exit 1')
    assert done.returncode == 1 and "ValueError: no" in done.stderr


def test_stops_before_a_first_step_are_no_failures(cluster: FakeCluster) -> None:
    """Three preemptions while data is prepared; a failure then is the first."""
    for start in range(4):
        done = run(
            cluster,
            'say asked SIGTERM; say left 0; [ $node = 1 ] || outcome stopped "" SIGTERM; exit 0',
            SLURM_RESTART_COUNT=str(start),
        )
        assert done.returncode == 0 and "requeue: SIGTERM" in done.stdout, done.stderr
    killed = "[ $attempt = 0 ] && { [ $node = 1 ] && killed; peer; }; finish"
    done = run(cluster, killed, SLURM_RESTART_COUNT="4")
    assert done.returncode == 0 and "attempt 1" in done.stdout, done.stderr


def test_stops_before_any_step_are_told_from_the_third_on(cluster: FakeCluster) -> None:
    """A time limit that start-up takes would else be requeued up to 50 times without a word."""
    stop = 'say left 0; [ $node = 1 ] || outcome stopped "" SIGUSR1; exit 0'
    told = "before a step was done; where the time limit asks, give the job more: scontrol update JobId=1234567 "
    said = []
    for start, text in enumerate((stop, stop, stop, f"saved 9; {stop}", f"saved 9; {stop}", stop)):
        done = run(cluster, text, SLURM_RESTART_COUNT=str(start))
        assert done.returncode == 0 and requeued(cluster), done.stderr
        said.append(told in done.stderr)
        assert not said[-1] or "asked to stop 3 times" in done.stderr
    assert said == [False, False, True, False, False, True]


def test_stops_do_not_hide_that_there_is_no_progress(cluster: FakeCluster) -> None:
    stopped = 'say left 0; [ $node = 1 ] || outcome stopped "" SIGTERM; exit 0'
    killed = "[ $node = 1 ] && killed; peer"
    for start, text in enumerate((killed, stopped, killed, stopped)):
        done = run(cluster, text, SLURM_RESTART_COUNT=str(start), MAX_ATTEMPTS="0")
        assert done.returncode == 0, done.stderr
    done = run(cluster, killed, SLURM_RESTART_COUNT="4", MAX_ATTEMPTS="0")
    assert done.returncode == 1 and "no checkpoint after step 0 in 2 more starts" in done.stderr


def test_requeueing_after_stops_has_an_end(cluster: FakeCluster) -> None:
    done = run(cluster, 'say left 0; [ $node = 1 ] || outcome stopped "" SIGTERM; exit 0', SLURM_RESTART_COUNT="50")
    assert done.returncode == 1 and "50 restarts are enough" in done.stderr


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


def test_an_srun_that_does_not_end_after_the_attempt_is_ended(cluster: FakeCluster) -> None:
    """As where the slurmstepd of a node has been killed; no other step would begin in this allocation."""
    text = "[ $node = 1 ] && peer; (peer); exec sleep 20 >/dev/null 2>&1"
    done = run(cluster, text, STEP_END_SECONDS="1")
    assert done.returncode == 0, done.stderr
    assert "requeue: srun did not end after the attempt had" in done.stdout and requeued(cluster)
    assert [line["then"] for line in restarts(cluster)] == ["requeue"]


@pytest.mark.parametrize("told", [True, False])
def test_an_srun_that_does_not_end_after_the_check_is_ended(cluster: FakeCluster, told: bool) -> None:
    """The same before an attempt, where the script waited until the time limit."""
    write = 'printf \'{"run_id": "%s-0", "exit_code": 0}\' "$SLURM_JOB_ID" >plan/run/preflight.json\n' if told else ""
    (cluster.directory / "check").write_text(f"{write}exec sleep 20 >/dev/null 2>&1")
    done = run(cluster, "finish", STEP_END_SECONDS="1", CHECK_SECONDS="100" if told else "1")
    assert done.returncode == 0 and requeued(cluster), done.stderr
    assert "requeue: srun did not end after the nodes had been checked" in done.stdout
    assert "start: " not in done.stdout and [line["then"] for line in restarts(cluster)] == ["requeue"]


AWAY = 'if [ "$node" = 0 ]; then touch "$RECORD/../away"; fi\n'  # the next question to Slurm's controller fails


def test_the_controller_is_away_at_the_end_of_an_attempt(cluster: FakeCluster) -> None:
    """It is restarted, or another one takes over: the run is not to end with that."""
    done = run(cluster, f"{AWAY}saved 7; say asked USR1; say left 0; outcome stopped asked USR1; exit 0")
    assert done.returncode == 0 and requeued(cluster), done.stderr
    assert "waiting for the controller of Slurm: scontrol: error: Unable to contact" in done.stderr


def test_the_controller_is_away_before_an_attempt(cluster: FakeCluster) -> None:
    """srun would give up at once."""
    (cluster.directory / "check").write_text(AWAY.replace("$node", "$SLURM_NODEID"))
    done = run(cluster, "finish")
    assert done.returncode == 0 and "waiting for the controller of Slurm" in done.stderr
    assert not (cluster.directory / "away").exists()


def test_a_controller_that_stays_away_ends_the_job(cluster: FakeCluster) -> None:
    done = run(
        cluster,
        f"{AWAY}saved 7; say asked USR1; say left 0; outcome stopped asked USR1; exit 0",
        CONTROLLER_SECONDS="0",
    )
    assert done.returncode == 1 and not requeued(cluster)
    assert "error: not started again: Slurm does not tell of this job" in done.stderr


@pytest.mark.parametrize(
    ("version", "fails"), [("4.2.46(2)-release", 0), ("4.3.0", 0), ("4.4.20", 1), ("5.2.15", 1), ("10.1", 1)]
)
def test_an_empty_list_is_not_unset_to_an_old_bash(version: str, fails: int) -> None:
    """Bash of CentOS 7 stopped at the first empty list. None that old is here: the script is told that it is one."""
    text = shell.body("common")
    start, end = text.index("unset_variables="), text.index('\n\n: "$')
    line = f'BASH_VERSION="{version}"; set -eu; {text[start:end]}; echo "${{none_such}}"'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == fails, done.stderr
    assert text.count("set -u") == 0 and text.count('set "$unset_variables"') == 2


def test_no_text_passes_through_a_file_in_tmp() -> None:
    """Bash before 5.1 writes one for ``<<<``: with a full /tmp what the ranks wrote would be read as nothing."""
    assert [name for name in (*slurm.BODIES, "launch") if "<<<" in shell.body(name)] == []
