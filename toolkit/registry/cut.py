"""A cluster cut to a number of GPUs: equal nodes, their links and share of the host, and what was assumed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from toolkit.cluster import Accelerator, ClusterSpec, Link
from toolkit.errors import Problems, ToolkitError
from toolkit.gpu_counts import GpuRequest
from toolkit.registry.conversion import to_link, to_sources, usual
from toolkit.registry.hardware import ClusterFile, LinkFile, NodeFile
from toolkit.registry.nodes import lay_out
from toolkit.units import GB, GIB

_WORDS = {
    "memory_bytes": "usable memory",
    "driver_total_bytes": "total memory",
    "memory_bandwidth_bytes_per_second": "memory bandwidth",
    "peak_flop_per_second": "peak rate",
    "achievable_flop_per_second": "achievable rate",
    "host_link_bytes_per_second": "link to the host",
    "price_per_hour": "price",
    "host_memory_bytes": "host memory",
    "host_cores": "host cores",
    "storage_bandwidth_bytes_per_second": "storage bandwidth",
    "gpu_seconds_per_failure": "failure rate",
    "restart_seconds": "time of a restart",
    "bandwidth_bytes_per_second": "bandwidth",
    "latency_seconds": "latency",
}


class Parts(NamedTuple):
    """A cluster file with its accelerator, before it is cut to a number of GPUs."""

    file: ClusterFile
    accelerator: Accelerator
    node: NodeFile | None  # the usual node of the accelerator
    where: str
    notes: tuple[str, ...]
    named: bool = True  # or the usual node, which is an assumption as a whole


def cut(parts: Parts, request: GpuRequest, asked_per_node: int) -> ClusterSpec:
    """The cluster with as many equal nodes as the request needs."""
    file, node, accelerator = parts.file, parts.node, parts.accelerator
    limit, size = file.site.max_gpus_per_node, file.gpus_per_node
    usable = min(size, limit) if limit else size
    if not request.gpus:
        per_node = asked_per_node or usable
        request = GpuRequest((file.nodes or 1) * per_node, file.nodes or 1, per_node)
    nodes, per_node = lay_out(
        request,
        cluster=file.name,
        node_size=size,
        asked_per_node=asked_per_node,
        site_limit=limit,
        any_size=file.any_gpus_per_node,
        nodes_there=file.nodes,
    )
    shared_out = size if usable < size and not file.any_gpus_per_node else per_node
    share = usable / size if not file.any_gpus_per_node else 1.0
    memory, cores = file.host_memory_gib, file.host_cores
    sources = to_sources(file.sources, file, parts.where)
    for key, value, field in (
        ("host_memory_gib", memory, "host_memory_bytes"),
        ("host_cores", cores, "host_cores"),
    ):
        if value:
            sources.setdefault(field, file.source or f"stated in {parts.where}")
        elif node is not None and getattr(node, key):
            sources[field] = usual(node.sources.get(key, "assumed"), accelerator.name)
    memory = memory or (node.host_memory_gib if node else 0.0)
    cores = cores or (node.host_cores if node else 0)
    with Problems() as problems:
        links = [_link(problems, parts, place, shared_out) for place in ("intra_node", "inter_node")]
    if file.price_per_gpu_hour:
        stated = sources.get("price_per_hour", file.source or f"stated in {parts.where}")
        accelerator = msgspec.structs.replace(
            accelerator,
            price_per_hour=file.price_per_gpu_hour,
            sources=accelerator.sources | {"price_per_hour": stated},
        )
    spec = ClusterSpec(
        name=file.name,
        accelerator=accelerator,
        nodes=nodes,
        gpus_per_node=per_node,
        fast_domain_gpus=file.fast_domain_gpus // size * per_node,
        intra_node=links[0],
        inter_node=links[1],
        host_memory_bytes=memory * GIB * share,
        host_cores=int(cores * share),
        storage_bandwidth_bytes_per_second=file.storage_gb_per_second * GB,
        gpu_seconds_per_failure=file.gpu_hours_per_failure * 3600.0,
        restart_seconds=file.restart_minutes * 60.0,
        site=file.site,
        source=file.source or parts.where,
        sources=sources,
    )
    return msgspec.structs.replace(spec, notes=_notes(parts, spec, usable))


def _link(problems: Problems, parts: Parts, place: str, gpus_in_use: int) -> Link:
    """The cluster's own link, or that of the accelerator's usual node, marked as such."""
    own: LinkFile | None = getattr(parts.file, place)
    try:
        if own is not None:
            return to_link(own, gpus_in_use, parts.accelerator.host_link_bytes_per_second, f"{parts.where}: {place}")
        if parts.node is None:
            raise ToolkitError(
                f"{parts.where}: {place} is missing, and {parts.accelerator.name} has no usual node to take it from",
                remedy=f"add [{place}] with name, gb_per_second_per_gpu, latency_microseconds and source",
            )
        taken: LinkFile = getattr(parts.node, place)
        link = to_link(taken, gpus_in_use, parts.accelerator.host_link_bytes_per_second, f"{parts.where}: {place}")
        name = parts.accelerator.name
        return msgspec.structs.replace(
            link, source=usual(link.source, name), latency_source=usual(link.latency_source, name)
        )
    except ToolkitError as error:
        problems.absorb(error)
        return Link(name="", bandwidth_bytes_per_second=1.0, latency_seconds=0.0)


def _notes(parts: Parts, spec: ClusterSpec, usable: int) -> tuple[str, ...]:
    """Everything that was assumed on the way, in sentences."""
    said, size = list(parts.notes), parts.file.gpus_per_node
    if usable < size and not parts.file.any_gpus_per_node:
        said.append(
            f"the site gives a job {usable} of the {size} GPUs of a node: {spec.nodes} x {spec.gpus_per_node}, "
            f"with {usable}/{size} of its memory and cores"
        )
    elif spec.gpus_per_node < size and not parts.file.any_gpus_per_node:
        verb = "is" if spec.gpus_per_node == 1 else "are"
        said.append(f"{spec.gpus_per_node} of the {size} GPUs of a node {verb} used ({spec.name})")
    assumed = [figure for figure in spec.assumed if parts.named or figure.startswith("accelerator.")]
    if assumed:
        said.append(f"assumed figures of {spec.name}: {', '.join(map(_in_words, assumed))}")
    return tuple(said)


def _in_words(figure: str) -> str:
    """``inter-node latency`` for ``inter_node.latency_seconds``."""
    place, _, name = figure.partition(".") if "." in figure else ("", "", figure)
    name, _, dtype = name.partition(".")
    words = [place.replace("_", "-"), _WORDS.get(name, name), dtype]
    return " ".join(word for word in words if word)
