"""Rules of sizes: GPUs of a node, nodes of a request, tensor parallelism, time to prepare data."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.check.commands import Script
from toolkit.check.facts import NCCL_SECONDS, Facts
from toolkit.check.launchers import Launch
from toolkit.check.rules import ERROR, finding
from toolkit.check.tasks import gpus_per_node, number, total_gpus
from toolkit.check.text import whole
from toolkit.finding import Finding

TENSOR = ("tensor_model_parallel_size", "tensor_parallel_size", "tp_size", "tp")
TIMEOUTS = {"ddp_timeout": 1.0, "distributed_timeout_seconds": 1.0, "distributed_timeout_minutes": 60.0}


def size_findings(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    """What the machines do not have, and what a collective does not wait for."""
    if script.is_batch:
        yield from _request(script, facts)
    seen: set[int] = set()
    for launch in found:
        gpus = facts.fast_domain_gpus or facts.gpus_per_node
        for name in TENSOR:
            degree = whole(launch.arguments.get(name, ""))
            if degree and gpus and degree > gpus and degree not in seen:
                seen.add(degree)
                yield finding(
                    "tensor-parallel",
                    f"--{name.replace('_', '-')}={degree} and {gpus} GPUs that a fast link joins",
                    f"at most {gpus}",
                    line=launch.line,
                )
    yield from _preparation(script, found, facts)


def _request(script: Script, facts: Facts) -> Iterator[Finding]:
    given = dict(script.head.options)
    nodes = number(given.get("nodes") or "1", script)
    have, line = gpus_per_node(given, nodes), script.head.line("gpus-per-node", "gres", "gpus", "nodes")
    usable, where = facts.usable_per_node, f" of {facts.cluster}" if facts.cluster else ""
    each = have
    if each is None and nodes == 1:
        each = total_gpus(given)
    if usable and each and each > usable:
        total = facts.gpus or each * (nodes or 1)
        capped = usable < (facts.gpus_per_node or usable)
        size = (
            f"a job may have {usable} of the {facts.gpus_per_node} GPUs of a node{where}"
            if capped
            else f"a node{where} has {usable}"
        )
        yield finding(
            "gpus-of-a-node",
            f"{each} GPUs on a node are asked for; {size}",
            f"--nodes={-(-total // usable)} --gpus-per-node={min(usable, total)} for {total} GPUs",
            line=line,
        )
    elif facts.gpus and have and nodes and have * nodes != facts.gpus:
        need = facts.nodes or -(-facts.gpus // have)
        yield finding(
            "node-count",
            f"{nodes} nodes of {have} GPUs are {have * nodes}, not {facts.gpus}",
            f"--nodes={need} --gpus-per-node={min(usable or have, facts.gpus)}",
            line=script.head.line("nodes"),
        )
    elif facts.nodes and nodes and have is None and nodes != facts.nodes:
        yield finding(
            "node-count",
            f"{facts.gpus} GPUs fill {facts.nodes} nodes of {usable}, --nodes={nodes}",
            f"--nodes={facts.nodes}",
            line=script.head.line("nodes"),
        )


def _preparation(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    """Samples over rate, against the time-out of the group that waits.

    A time-out that is long enough still has to reach every group: the ones that libraries make later have their own.
    """
    need = facts.preparing_seconds
    if not need:
        return
    stated, line, name = facts.timeout_seconds, 0, ""
    for launch in found:
        for option, seconds in TIMEOUTS.items():
            value = launch.arguments.get(option, "")
            if not stated and whole(value) is not None:
                stated, line, name = int(value) * seconds, launch.line, f"--{option} gives"
    for each in script.assignments:
        if each.name == "DEEPSPEED_TIMEOUT" and not stated and whole(each.text):
            stated, line, name = int(each.text) * 60.0, each.line, "DEEPSPEED_TIMEOUT gives"
    limit = stated or NCCL_SECONDS
    if need <= limit:
        return
    who = name or ("the time-out is" if stated else "NCCL's own time-out is")
    yield finding(
        "preparation",
        f"{facts.samples:,} samples at {facts.samples_per_second:g} a second take {need:,.0f} s"
        f" ({need / 3600.0:.1f} h),"
        f" {who} {limit:g} s",
        f"prepare the data before the launch, in a job of its own; or a time-out above {need * 1.2:,.0f} s in every"
        " rank and every process group (one that a library makes later has its own)",
        line=line,
        severity=ERROR,
    )
