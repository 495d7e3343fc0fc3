"""``toolkit preflight``: inside a job, before training, on every node."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.plan import Plan
    from toolkit.runtime.preflight.request import Request
    from toolkit.runtime.preflight.verdict import Verdict

CHECKS = ("versions", "storage", "clock", "name", "gpus", "collective")
COUNTED = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES")


@click.command("preflight")
@click.argument("plan_file", metavar="PLAN.json")
@click.option("--output-dir", metavar="DIR", help="Where the run writes: the folder 'run' beside the plan.")
@click.option("--rendezvous", metavar="HOST:PORT", help="Of the training; MASTER_ADDR and MASTER_PORT unless given.")
@click.option("--nodes", type=click.IntRange(1, 2**16), help="Nodes of the job; Slurm's unless given, else 1.")
@click.option("--node", type=click.IntRange(0, 2**16), help="Number of this node; SLURM_NODEID unless given.")
@click.option("--hosts", metavar="A,B,...", default="", help="Names of all nodes, to name those that never come.")
@click.option("--run-id", metavar="TEXT", help="The same on all nodes, another for each start; of Slurm unless given.")
@click.option("--keep", type=click.IntRange(1, 10**6), default=2, show_default=True, help="Checkpoints that are kept.")
@click.option("--skip", type=click.Choice(CHECKS), multiple=True, help="A check to leave out; may be repeated.")
@click.option(
    "--time-limit",
    type=click.FloatRange(5.0, 3600.0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Half of it for the nodes to meet, half for the all-reduces.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on the first node.")
def command(plan_file: str, **options: Any) -> None:
    """Look whether the nodes of a job are fit for PLAN.json; run it once on each node, at the same time.

    Exit code 0: start the training; 76: some nodes are bad, named on stderr, in preflight.json and one a line in
    preflight.bad of the output directory, which is there for them only; 1: all nodes have the problem; 2: wrong input,
    also an output directory that no node may write.

    \b
    srun --ntasks-per-node=1 toolkit preflight plan.json --rendezvous n1:20042
    toolkit preflight plan.json --nodes 1
    """
    from toolkit.cli.files import read_plan
    from toolkit.runtime.lease import Lease
    from toolkit.runtime.preflight import probe
    from toolkit.runtime.preflight.run import run

    plan = read_plan(plan_file)
    node = options["node"] if options["node"] is not None else _number("SLURM_NODEID", 0)
    request = _request(plan, plan_file, options)
    if node >= request.nodes:
        raise ToolkitError(f"node {node} of {request.nodes} nodes", remedy="nodes are counted from 0")
    with contextlib.suppress(OSError):  # the check of the storage tells
        Lease(request.output_directory).look()  # the files of another run stay as they are
    with probe.cleaned_up():
        verdict = run(request, node, _host())
    _tell(verdict, node, options["as_json"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(verdict.exit_code)  # a check that hangs in the file system holds its thread


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if text and not (text.isascii() and text.isdigit()):
        raise ToolkitError(f"{name} is {text!r}, not a number", remedy="start with srun, or give --nodes and --node")
    return int(text or default)


def _host() -> str:
    import socket

    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _place(text: str | None, nodes: int) -> tuple[str, int]:
    if not text and os.environ.get("MASTER_ADDR"):
        text = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
    if not text:
        if nodes > 1:
            raise ToolkitError(f"{nodes} nodes need a place to meet", remedy="give --rendezvous HOST:PORT")
        return "127.0.0.1", 0
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 2**16:
        raise ToolkitError(f"rendezvous {text!r} is not HOST:PORT", remedy="e.g. --rendezvous n1:20042")
    return host.strip("[]"), int(port)


def _request(plan: Plan, plan_file: str, options: dict[str, Any]) -> Request:
    """The plan's expectations: bytes and seconds of a checkpoint, seconds of all-reduces."""
    import hashlib
    from pathlib import Path

    from toolkit.cluster import is_assumed
    from toolkit.emit.script import CHECKPOINT_BYTES_PER_PARAMETER, gpus_per_node, stop_seconds
    from toolkit.estimate.collectives import all_reduce_seconds, fabric, group
    from toolkit.recipe import contract_sha256
    from toolkit.runtime.preflight.request import LADDER, Request

    nodes = options["nodes"] or next((n for name in COUNTED if (n := _number(name, 0))), 1)
    address, port = _place(options["rendezvous"], nodes)
    job = os.environ.get("SLURM_JOB_ID", "here")
    links = fabric(plan.cluster)
    gpus = gpus_per_node(plan)
    processes = max(gpus, 1)
    of_pair = group(links, 2 * processes, 1) if gpus else group(links, 2, links.domain)
    link = plan.cluster.inter_node
    resilience = plan.resilience
    return Request(
        plan_sha256=hashlib.sha256(Path(plan_file).read_bytes()).hexdigest(),
        contract_sha256=contract_sha256(plan.contract),
        output_directory=str(Path(options["output_dir"] or Path(plan_file).parent / "run").absolute()),
        run_id=options["run_id"] or f"{job}-{os.environ.get('SLURM_RESTART_COUNT', '0')}",
        nodes=nodes,
        hosts=tuple(filter(None, options["hosts"].split(","))),
        address=address,
        port=port,
        keep=options["keep"],
        checkpoint_bytes=resilience.checkpoint_bytes
        if resilience
        else CHECKPOINT_BYTES_PER_PARAMETER * plan.total_parameters,
        checkpoint_seconds=resilience.checkpoint_seconds if resilience else 0.0,
        stop_seconds=stop_seconds(plan),
        files_of_a_checkpoint=100 + 4 * plan.cluster.num_gpus,
        gpus_per_node=gpus,
        accelerator=plan.cluster.accelerator.name,
        vendor=plan.cluster.accelerator.vendor,
        alone_seconds={size: float(all_reduce_seconds(links, group(links, processes, 1), size)) for size in LADDER},
        pair_seconds={size: float(all_reduce_seconds(links, of_pair, size)) for size in LADDER},
        link=link.name,
        link_assumed=is_assumed(link.source) or plan.cluster.accelerator.is_cpu,
        skip=tuple(options["skip"]),
        time_limit=options["time_limit"],
    )


def _tell(verdict: Verdict, node: int, as_json: bool) -> None:
    """Everything once, from the first node; JSON on stdout, troubles on stderr."""
    if node and _host() not in verdict.bad_nodes:
        return
    for trouble in verdict.troubles:
        click.echo(f"{trouble.severity}: {trouble}", err=True)
    for name in verdict.bad_nodes:
        click.echo(f"bad node: {name}", err=True)
    if node:
        return
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(verdict).decode())
        return
    for each in verdict.skipped:
        click.echo(f"not checked: {each}")
    for each in verdict.assumed:
        click.echo(f"assumed: {each}")
    said = {0: "fit", 76: f"without {', '.join(verdict.bad_nodes)}"}.get(verdict.exit_code, "not fit")
    count = len(verdict.nodes)
    click.echo(f"preflight: {count} node{'' if count == 1 else 's'}, {said}, {verdict.seconds:.1f} s")
