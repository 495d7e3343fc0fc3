"""Clusters by name or TOML file, cut to the number of GPUs that is asked for."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from toolkit.cluster import ClusterSpec, Site
from toolkit.errors import Problems, ToolkitError
from toolkit.gpu_counts import GpuRequest, parse_gpus
from toolkit.registry import files
from toolkit.registry.accelerators import could_mean, is_path, match_accelerator, read_accelerator, read_toml
from toolkit.registry.conversion import check_cluster, to_accelerator
from toolkit.registry.cut import Parts, cut
from toolkit.registry.hardware import ClusterFile
from toolkit.registry.strict import decode

KIND = "clusters"
DEFAULT = "dgx-h100"

# names that stand for several clusters: the one with the least memory, and why
_AMBIGUOUS = {
    "dgx-a100": ("dgx-a100-40gb", "DGX A100 came with 40 and with 80 GB: 40 GB is taken; name dgx-a100-80gb if so"),
}


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
    parts: Parts | None = None
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
    return cut(parts, request, gpus_per_node or 0)


def load_cluster(name_or_path: str, gpus: str | int | None = None, gpus_per_node: int | None = None) -> ClusterSpec:
    """A cluster by name, alias or TOML file; without ``gpus`` all its nodes, or one where it lists none."""
    return resolve_cluster(gpus, cluster=name_or_path, gpus_per_node=gpus_per_node)


def read_cluster(name: str) -> tuple[ClusterFile, str, tuple[str, ...]]:
    """The file behind a name or path, what to call it in messages, and a note if the name is ambiguous."""
    if is_path(name):
        path = files.expanded(name)
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


def _choose(cluster: str | None, wanted: list[str], gpus_per_node: int) -> Parts:
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


def _named(name: str) -> Parts:
    file, where, said = read_cluster(name)
    folder = Path(where).parent if is_path(name) else None
    card, card_where, note = read_accelerator(file.accelerator, folder)
    notes = (*said, *((f"{where}: {note}",) if note else ()), *file.notes)
    return Parts(file, to_accelerator(card, card_where), card.node, where, notes)


def _usual_node(name: str, gpus_per_node: int) -> Parts:
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
    return Parts(file, to_accelerator(card, where), node, where, (*((note,) if note else ()), said), named=False)


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
