"""Clusters by name or TOML file, cut to the number of GPUs that is asked for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from toolkit.cluster import Accelerator, ClusterSpec, Link, Site
from toolkit.errors import Problems, ToolkitError
from toolkit.gpu_counts import GpuRequest, parse_gpus
from toolkit.registry import files
from toolkit.registry.accelerators import could_mean, is_path, match_accelerator, read_accelerator, read_toml
from toolkit.registry.hardware import (
    ClusterFile,
    LinkFile,
    NodeFile,
    check_cluster,
    to_accelerator,
    to_link,
    to_sources,
    usual,
)
from toolkit.registry.nodes import lay_out
from toolkit.registry.strict import decode
from toolkit.units import GB, GIB

KIND = "clusters"
DEFAULT = "dgx-h100"

# names that stand for several clusters: the one with the least memory, and why
_AMBIGUOUS = {
    "dgx-a100": ("dgx-a100-40gb", "DGX A100 came with 40 and with 80 GB: 40 GB is taken; name dgx-a100-80gb if so"),
}


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


class _Parts(NamedTuple):
    """A cluster file with its accelerator, before it is cut to a number of GPUs."""

    file: ClusterFile
    accelerator: Accelerator
    node: NodeFile | None  # the usual node of the accelerator
    where: str
    notes: tuple[str, ...]
    named: bool = True  # or the usual node, which is an assumption as a whole


def resolve_cluster(
    gpus: str | int | None,
    cluster: str | None = None,
    accelerator: str | None = None,
    gpus_per_node: int | None = None,
) -> ClusterSpec:
    """The machines of a request: ``--gpus`` with ``--cluster``, ``--accelerator``, or neither.

    ``gpus`` is a count, ``NxM``, or either with a card's name (``8xH100``); None means all nodes that the
    cluster file lists, or one. Without a cluster an accelerator comes in its usual node, and without either
    the request is for DGX H100; both are said in ``notes``. Raises ToolkitError with every problem.
    """
    request: GpuRequest | None = None
    parts: _Parts | None = None
    with Problems() as problems:
        try:
            request = parse_gpus(gpus) if gpus is not None else GpuRequest(0)
        except ToolkitError as error:
            problems.absorb(error)
        if gpus_per_node is not None and gpus_per_node < 1:
            problems.add(f"--gpus-per-node {gpus_per_node} is not positive", "say how many GPUs a node has: 8")
        wanted = [name for name in (accelerator, request and request.accelerator or None) if name is not None]
        try:
            parts = _choose(cluster, wanted, gpus_per_node or 0)
        except ToolkitError as error:
            problems.absorb(error)
    if request is None or parts is None:
        raise AssertionError("problems were found, but not raised")
    return _cut(parts, request, gpus_per_node or 0)


def load_cluster(name_or_path: str, gpus: str | int | None = None, gpus_per_node: int | None = None) -> ClusterSpec:
    """A cluster by name, alias or TOML file; without ``gpus`` all its nodes, or one where it lists none."""
    return resolve_cluster(gpus, cluster=name_or_path, gpus_per_node=gpus_per_node)


def read_cluster(name: str) -> tuple[ClusterFile, str, tuple[str, ...]]:
    """The file behind a name or path, what to call it in messages, and a note if the name is ambiguous."""
    if is_path(name):
        path = Path(name).expanduser()
        file, where = decode(read_toml(path, "cluster"), ClusterFile, str(path)), str(path)
        check_cluster(file, where)
        return file, where, ()
    entry = files.find(KIND, name)
    said: tuple[str, ...] = ()
    if entry is None and files.normal(name) in _AMBIGUOUS:
        safe, note = _AMBIGUOUS[files.normal(name)]
        entry, said = files.get(KIND, safe), (note,)
    if entry is None:
        raise ToolkitError(f"unknown cluster {name[:80]!r}", remedy=_remedy(name[:80]))
    where = f"data/{KIND}/{entry.path.name}" if files.SHIPPED in entry.path.parents else str(entry.path)
    file = decode(entry.values | {"name": entry.name}, ClusterFile, where)
    check_cluster(file, where)
    return file, where, said


def cluster_names() -> list[str]:
    """Names of all clusters; shipped files are not opened for it."""
    shipped = {path.stem for path in (files.SHIPPED / KIND).glob("*.toml")}
    return sorted(shipped | {entry.name for entry in files.own(KIND).values()})


def _choose(cluster: str | None, wanted: list[str], gpus_per_node: int) -> _Parts:
    """The cluster, the usual node of the accelerator, or the default; refuses contradictions."""
    if len(wanted) == 2 and match_accelerator(wanted[0]).name != match_accelerator(wanted[1]).name:
        raise ToolkitError(f"--accelerator {wanted[0]}, but --gpus names {wanted[1]}", remedy="give one of the two")
    if cluster is not None:
        parts = _named(cluster)
        for name in wanted:
            if not could_mean(name, parts.accelerator.name):
                raise ToolkitError(
                    f"cluster {parts.file.name} has {parts.accelerator.name}, not {name}",
                    remedy="give --cluster or --accelerator, or describe your own cluster (docs/clusters.md)",
                )
        return parts
    if wanted:
        return _usual_node(wanted[0], gpus_per_node)
    parts = _named(DEFAULT)
    return parts._replace(
        notes=(f"no cluster was named: {parts.file.summary}; name yours with --cluster", *parts.notes)
    )


def _named(name: str) -> _Parts:
    file, where, said = read_cluster(name)
    folder = Path(where).parent if is_path(name) else None
    card, card_where, note = read_accelerator(file.accelerator, folder)
    notes = (*said, *((f"{where}: {note}",) if note else ()), *file.notes)
    return _Parts(file, to_accelerator(card, card_where), card.node, where, notes)


def _usual_node(name: str, gpus_per_node: int) -> _Parts:
    """A cluster of the accelerator's usual nodes, or of nodes as large as the user says."""
    card, where, note = read_accelerator(name)
    node = card.node
    if node is None:
        raise ToolkitError(
            f"{where} has no [node], so nothing is known about machines with {card.name}",
            remedy="add [node] to it, or describe the cluster in a TOML file and use --cluster FILE",
        )
    size = gpus_per_node or node.gpus_per_node
    domain = node.fast_domain_gpus
    if size != node.gpus_per_node:
        domain = domain // node.gpus_per_node * size if size < node.gpus_per_node else 0
        node = msgspec.structs.replace(  # a smaller node is taken to have less of the rest too
            node,
            host_memory_gib=node.host_memory_gib * size / node.gpus_per_node,
            host_cores=max(node.host_cores * size // node.gpus_per_node, 1),
        )
    file = ClusterFile(
        name=f"{card.name}-node",
        accelerator=card.name,
        gpus_per_node=size,
        any_gpus_per_node=card.architecture == "cpu",
        fast_domain_gpus=domain,
        summary=f"nodes of {size} {card.name}",
        site=msgspec.convert({"gpu_request": "none", "exclusive": False} if card.architecture == "cpu" else {}, Site),
    )
    said = (
        f"no cluster was named: nodes of {size} {card.name} with {node.intra_node.name} inside and "
        f"{node.inter_node.name} between them are assumed; name yours with --cluster"
    )
    return _Parts(file, to_accelerator(card, where), node, where, (*((note,) if note else ()), said), named=False)


def _cut(parts: _Parts, request: GpuRequest, asked_per_node: int) -> ClusterSpec:
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
        accelerator = msgspec.structs.replace(accelerator, price_per_hour=file.price_per_gpu_hour)
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


def _link(problems: Problems, parts: _Parts, place: str, gpus_in_use: int) -> Link:
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


def _notes(parts: _Parts, spec: ClusterSpec, usable: int) -> tuple[str, ...]:
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


def _remedy(name: str) -> str:
    """Near names, an accelerator or a file of that name, and the list."""
    hints = []
    near = files.nearest(KIND, name)
    if near:
        hints.append(f"did you mean {', '.join(near)}?")
    with contextlib.suppress(ToolkitError):
        hints.append(f"{name!r} is an accelerator: --accelerator {match_accelerator(name).name}.")
    hints.append(f"known: {', '.join(cluster_names())}; or give the path of your own TOML file (docs/clusters.md)")
    return " ".join(hints)
