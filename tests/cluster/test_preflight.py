"""The check before each start: nodes that are really broken are left out, a full disk stops the job.

A shell script stands in the place of the launcher: what happens before it is under test.
"""

import contextlib
import json
import re
import sys

import pytest

from tests.cluster import runs

pytestmark = pytest.mark.cluster
# beside a torchrun on PATH, it is the Python that scripts take
PYTHON = f"""#!/bin/bash
if [ "$1 $2" = "-m toolkit.runtime.torchrun" ]; then exec bash "${{0%/*}}/launcher"; fi
exec {sys.executable} "$@"
"""

FINISHES = """
echo "trained on $SLURMD_NODENAME"
touch out/run/FINISHED
"""

FAILS_ONCE = """
mine=out/run/.attempt/$TOOLKIT_ATTEMPT/$SLURM_NODEID
echo "here $SLURMD_NODENAME" >"$mine"
case $TOOLKIT_ATTEMPT in *-0-0)
  cp later.json trouble.json
  if [ "$SLURMD_NODENAME" = n1 ]; then echo "failed peer" >>"$mine" && sleep 30; fi
  until grep -q failed out/run/.attempt/*/0; do sleep 0.1; done
  exit 1 ;;                                          # without a last word, as one that was killed
esac
echo "trained on $SLURMD_NODENAME in $TOOLKIT_ATTEMPT"
echo "left 0" >>"$mine"
touch out/run/FINISHED
"""


@pytest.fixture
def folder(tmp_path):
    """An emitted job of two nodes."""
    (tmp_path / "bin").mkdir()
    for name, text in (("torchrun", "#!/bin/bash\nexit 99\n"), ("python3", PYTHON), ("launcher", FINISHES)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    runs.emit(tmp_path, "tiny", "--framework", "ddp", first=tmp_path / "bin")
    return tmp_path


@contextlib.contextmanager
def own_name_is_loopback(cluster, node, folder):
    """Debian's installer writes this line. Where all nodes share a network it would do no harm."""
    if cluster.mode != "netns":
        yield ()
        return
    hosts = [line for line in (cluster.folder / "hosts").read_text().splitlines() if line.split()[-1] != node]
    (folder / "hosts").write_text("\n".join([*hosts, f"127.0.1.1 {node}", ""]))
    there = ("nsenter", "-t", (cluster.folder / "run" / f"node-{node}.pid").read_text().strip(), "-m")
    cluster.run(*there, "mount", "--bind", folder / "hosts", "/etc/hosts")
    try:
        yield (node,)
    finally:
        cluster.run(*there, "umount", "/etc/hosts")


def test_broken_nodes_are_named_and_left_out_one_after_the_other(four_nodes, folder):
    """n2 tells the others a loopback address; n3, which takes its place, has another version of a library."""
    metadata = folder / "older" / "transformers-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.0.1\n")
    older = "n3" if four_nodes.mode == "netns" else "n2"
    (folder / "trouble.json").write_text(json.dumps({"path": str(folder / "older"), "node": older}))
    with own_name_is_loopback(four_nodes, "n2", folder) as unreachable:
        run = runs.Run(four_nodes, folder)
        run.until((run.output / "FINISHED").exists)
        job = four_nodes.wait(run.number, states={"COMPLETED"})
    said, left_out = run.log(), [*unreachable, older]
    assert job["ExcNodeList"] in (",".join(left_out), f"n[{2}-{3}]"), said
    assert said.count("\nrequeue without ") == len(left_out) == int(job["Restarts"])
    for node in left_out:
        assert f"bad node: {node}\n" in said and f"requeue without {node}: toolkit preflight names {node}" in said
    assert f"error: {older}: transformers is 0.0.1, the other nodes have " in said
    if unreachable:
        assert "error: n2: n1 cannot reach 127.0.1.1, what its own name n2 resolves to" in said
    assert sorted(line for line in said.splitlines() if line.startswith("trained on ")) == [
        *("trained on n1", f"trained on n{2 + len(left_out)}"),
    ]


def test_a_node_that_goes_bad_in_an_attempt_is_left_out_before_the_next(four_nodes, folder):
    """A fault in the first attempt; n2 has another version of a library from then on. No second attempt meets it."""
    (folder / "bin" / "launcher").write_text(FAILS_ONCE)
    metadata = folder / "older" / "transformers-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.0.1\n")
    (folder / "later.json").write_text(json.dumps({"path": str(folder / "older"), "node": "n2"}))
    run = runs.Run(four_nodes, folder)
    run.until((run.output / "FINISHED").exists)
    job = four_nodes.wait(run.number, states={"COMPLETED"})
    said = run.log()
    assert (job["ExcNodeList"], job["Restarts"]) == ("n2", "1"), said
    assert "rank 1 on n2 was killed" in said and "requeue without n2: toolkit preflight names n2" in said
    trained = [line for line in said.splitlines() if line.startswith("trained on ")]
    assert len(trained) == 2 and all(line.endswith(f" in {run.number}-1-0") and " n2 " not in line for line in trained)


def test_a_full_disk_stops_the_job_at_once_with_the_reason(four_nodes, folder):
    if four_nodes.mode == "plain":
        return  # without name spaces there is no disk to fill
    run = runs.Run(four_nodes, folder, "--output-dir", str(four_nodes.folder / "small" / "run"))
    job = four_nodes.wait(run.number)
    said = run.log()
    assert (job["JobState"], job["Restarts"], job["ExitCode"]) == ("FAILED", "0", "1:0"), said
    for node in ("n1", "n2"):
        assert re.search(
            rf"error: {node}: .* MiB free in {four_nodes.folder}/small/run, 3 checkpoints of .* need", said
        )
    assert "not started again: toolkit preflight returned 1" in said
    assert "bad node" not in said and "trained on" not in said


def test_good_nodes_are_checked_and_the_job_begins(four_nodes, folder):
    """With the all-reduces, at the address where the training meets."""
    run = runs.Run(four_nodes, folder, check="")
    job = four_nodes.wait(run.number)
    said = run.log()
    assert job["JobState"] == "COMPLETED", said
    assert "preflight: 2 nodes, fit, " in said and "trained on n2" in said
    found = json.loads((run.output / "preflight.json").read_text())
    assert (found["exit_code"], found["nodes"], found["run_id"]) == (0, ["n1", "n2"], f"{run.number}-0")
    (pair,) = found["measured"]["collective"]
    assert pair["nodes"] == ["n1", "n2"] and pair["seconds"] > 0
