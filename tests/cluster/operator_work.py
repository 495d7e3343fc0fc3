"""What an operator does after a fault: starts nodes, plugs them in, gives them back, and releases what Slurm holds.

Slurm holds a job (launch_failed_requeued_held) whose start its controller has forgotten, being killed just then: the
node then knows the job already.
"""

from __future__ import annotations

from tests.cluster.process_faults import NODES
from tests.cluster.runs import Run


def mend(run: Run) -> None:
    """Of all that may be wrong; nodes that the job avoids were repaired."""
    cluster = run.cluster
    (run.output.parent / "filler").unlink(missing_ok=True)
    for node in NODES:
        try:
            cluster.slurmd(node)
        except AssertionError:
            cluster.start_node(node)
        if cluster.mode == "netns":
            cluster.cable(node, "up")
    away = cluster.run("sinfo", "-h", "-N", "-p", "urgent", "-o", "%N %T", check=False).split("\n")
    for line in away:
        if any(word in line for word in ("down", "drain")):
            cluster.run("scontrol", "update", f"NodeName={line.split()[0]}", "State=RESUME", check=False)
    job = run.job()
    if (
        job["JobState"] == "PENDING"
        and job.get("ExcNodeList", "(null)").count("n") - 2 * ("(" in job["ExcNodeList"]) > 1
    ):
        cluster.run("scontrol", "update", f"JobId={run.number}", "ExcNodeList=", check=False)
    if job["JobState"] in ("PENDING", "RUNNING"):
        cluster.run("scontrol", "update", f"JobId={run.number}", "TimeLimit=60", check=False)
    if job["JobState"] == "PENDING" and "held" in job["Reason"]:
        cluster.run("scontrol", "release", run.number, check=False)
