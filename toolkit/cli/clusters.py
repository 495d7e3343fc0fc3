"""``toolkit clusters``: list named clusters, or show one (also your own file) with the source of each figure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.lines import wrapped

if TYPE_CHECKING:
    from toolkit.cluster import ClusterSpec


@click.command("clusters")
@click.argument("name", required=False)
@click.option("--gpus", metavar="N", help="Show the nodes that this many GPUs take: 64, or 8x8.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), help="Use fewer GPUs of each node than it has.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, gpus: str | None, gpus_per_node: int | None, as_json: bool) -> None:
    """List named clusters, or show one with the source of each figure.

    \b
    toolkit clusters
    toolkit clusters gb200-nvl72 --gpus 64
    toolkit clusters ./my-cluster.toml
    """
    from toolkit.registry.clusters import cluster_names, load_cluster

    if name is None:
        if gpus or gpus_per_node:
            raise click.UsageError("--gpus and --gpus-per-node need a cluster: toolkit clusters NAME --gpus 64")
        _list(cluster_names(), as_json)
        return
    cluster = load_cluster(name, gpus, gpus_per_node)
    if as_json:
        click.echo(json.dumps(document(cluster), indent=2, allow_nan=False))
    else:
        _show(cluster)


def document(cluster: ClusterSpec) -> dict[str, Any]:
    """The JSON form: fields in SI units, the GPUs in all, and which figures are assumed."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(cluster)
    return values | {
        "num_gpus": cluster.num_gpus,
        "fast_domain": cluster.fast_domain,
        "assumed": list(cluster.assumed),
    }


def _show(cluster: ClusterSpec) -> None:
    from toolkit.cli.accelerators import echo_figures, figures
    from toolkit.units import format_bytes, format_rate, format_seconds

    line = (
        f"{cluster.name}: {cluster.nodes} x {cluster.gpus_per_node} = {cluster.num_gpus} {cluster.accelerator.name}, "
        f"{cluster.fast_domain} reach each other over {cluster.intra_node.name}"
    )
    click.echo(wrapped("", line))
    rows = []
    for label, link in (("inside a node", cluster.intra_node), ("between nodes", cluster.inter_node)):
        rate = f"{format_rate(link.bandwidth_bytes_per_second)} per GPU and direction"
        rows.append((f"{label}: {link.name}", rate, link.source))
        if link.peer_bandwidth_bytes_per_second:
            rows.append(("  to one peer", format_rate(link.peer_bandwidth_bytes_per_second), link.source))
        rows.append(("  latency", format_seconds(link.latency_seconds), link.latency_source))
    if cluster.host_memory_bytes:
        source = cluster.sources.get("host_memory_bytes", "")
        rows.append(("host memory of a node", format_bytes(cluster.host_memory_bytes), source))
    if cluster.host_cores:
        rows.append(("host cores of a node", str(cluster.host_cores), cluster.sources.get("host_cores", "")))
    if cluster.storage_bandwidth_bytes_per_second:
        rate = format_rate(cluster.storage_bandwidth_bytes_per_second)
        rows.append(("shared storage", rate, cluster.sources.get("storage_bandwidth_bytes_per_second", cluster.source)))
    if cluster.gpu_seconds_per_failure:
        source = cluster.sources.get("gpu_seconds_per_failure", cluster.source)
        rows.append(("failures", f"one in {cluster.gpu_seconds_per_failure / 3600.0:,.0f} GPU-hours", source))
    if cluster.restart_seconds:
        source = cluster.sources.get("restart_seconds", cluster.source)
        rows.append(("restart after a failure", format_seconds(cluster.restart_seconds), source))
    echo_figures(rows)
    click.echo(f"each {cluster.accelerator.name}:")
    echo_figures(figures(cluster.accelerator))
    for note in cluster.notes:
        click.echo(wrapped("note: ", note))


def _list(names: list[str], as_json: bool) -> None:
    from toolkit.registry.clusters import read_cluster

    found = [read_cluster(name)[0] for name in names]
    if as_json:
        rows = [
            {
                "name": each.name,
                "aliases": list(each.aliases),
                "accelerator": each.accelerator,
                "gpus_per_node": each.gpus_per_node,
                "summary": each.summary,
            }
            for each in found
        ]
        click.echo(json.dumps(rows, indent=2, allow_nan=False))
        return
    wide = [max(len(each.name) for each in found), max(len(each.accelerator) for each in found)]
    click.echo(f"{'name':<{wide[0]}}  {'accelerator':<{wide[1]}}  per node  ")
    for each in found:
        line = f"{each.name:<{wide[0]}}  {each.accelerator:<{wide[1]}}  {each.gpus_per_node:>8}  "
        click.echo(wrapped(line, each.summary))
    last = "toolkit clusters NAME shows every figure with its source; docs/clusters.md tells how to add your own"
    click.echo(wrapped("", last))
