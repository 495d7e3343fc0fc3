"""From a number of GPUs to equal nodes, or to the reason why it cannot be."""

from __future__ import annotations

from toolkit.errors import ToolkitError
from toolkit.gpu_counts import GpuRequest


def lay_out(
    request: GpuRequest,
    *,
    cluster: str,
    node_size: int,
    asked_per_node: int = 0,
    site_limit: int = 0,
    any_size: bool = False,
    nodes_there: int = 0,
) -> tuple[int, int]:
    """Nodes and GPUs per node for a request; every node holds equally many.

    ``node_size`` is what the hardware has, ``asked_per_node`` what the user wants of it, ``site_limit``
    what a job may have of one node (0: all), ``nodes_there`` how many nodes exist (0: enough).
    A count below one node is one node with that many. Raises ToolkitError where a last node would be
    partly filled, a node is not that large, the site does not allow it, or there are not enough nodes.
    """
    usable = min(node_size, site_limit) if site_limit else node_size
    fixed = request.gpus_per_node or asked_per_node
    if asked_per_node and request.gpus_per_node and asked_per_node != request.gpus_per_node:
        raise ToolkitError(
            f"{request.nodes}x{request.gpus_per_node} GPUs, but --gpus-per-node {asked_per_node}",
            remedy="give one of the two, or make them equal",
        )
    if fixed > usable and not any_size:
        _refuse_node(request, cluster, node_size, usable, fixed)
    if request.nodes:
        nodes, per_node = request.nodes, request.gpus_per_node
    else:
        per_node = fixed or (request.gpus if any_size else usable)
        if request.gpus < per_node:
            per_node = request.gpus
        if request.gpus % per_node:
            _refuse_rest(request.gpus, cluster, per_node, usable)
        nodes = request.gpus // per_node
    if nodes_there and nodes > nodes_there:
        most = nodes_there * (fixed or usable)
        raise ToolkitError(
            f"{request.gpus} GPUs need {nodes} nodes of {per_node}, and {cluster} has {nodes_there}",
            remedy=f"ask for {most} GPUs or fewer, or correct nodes in the cluster file",
        )
    return nodes, per_node


def _refuse_node(request: GpuRequest, cluster: str, node_size: int, usable: int, fixed: int) -> None:
    """A node with more GPUs than there are, or than the site gives to one job."""
    equal = f"--gpus {request.gpus // usable}x{usable}" if request.gpus % usable == 0 else f"--gpus-per-node {usable}"
    if fixed <= node_size:
        raise ToolkitError(
            f"{fixed} GPUs per node: {cluster} has {node_size}, but the site gives a job at most {usable} of a node "
            "(site.max_gpus_per_node), so this job would never start",
            remedy=f"use {equal}",
        )
    raise ToolkitError(f"{fixed} GPUs per node: {cluster} has {usable}", remedy=f"use {equal}")


def _refuse_rest(gpus: int, cluster: str, per_node: int, usable: int) -> None:
    """A last node that is partly filled: frameworks need equal nodes."""
    below, above = gpus // per_node * per_node, (gpus // per_node + 1) * per_node
    part = next(size for size in range(usable, 0, -1) if gpus % size == 0)
    equal = f", or --gpus {gpus // part}x{part} for equal nodes of {part}" if part > 1 else ""
    raise ToolkitError(
        f"{gpus} GPUs do not fill nodes of {per_node} ({cluster}): the last node would hold {gpus % per_node}, "
        "and every node must run equally many processes",
        remedy=f"use --gpus {below} or --gpus {above}{equal}",
    )
