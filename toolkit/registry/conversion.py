"""The figures of a TOML file about hardware in SI, each with its source, and what in such a file cannot be.

A bandwidth is one direction, and its key says whether it belongs to one GPU or is shared by all GPUs of a node: exactly
one of the four keys is given.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from toolkit.cluster import Accelerator, Link, is_assumed
from toolkit.errors import Problems
from toolkit.gpu_counts import MOST_GPUS, MOST_GPUS_PER_NODE
from toolkit.registry.hardware import ARCHITECTURES, DTYPES, AcceleratorFile, ClusterFile, LinkFile
from toolkit.registry.strict import did_you_mean
from toolkit.units import BITS_PER_BYTE, GB, GIB, MIB, TERA

# the field of a noun that a key of a file becomes: sources are looked up by it
FIELD_OF_KEY = {
    "memory_gib": "memory_bytes",
    "driver_total_mib": "driver_total_bytes",
    "memory_bandwidth_gb_per_second": "memory_bandwidth_bytes_per_second",
    "peak_tflop_per_second": "peak_flop_per_second",
    "achievable_tflop_per_second": "achievable_flop_per_second",
    "host_link_gb_per_second": "host_link_bytes_per_second",
    "price_per_hour": "price_per_hour",
    "price_per_gpu_hour": "price_per_hour",
    "host_memory_gib": "host_memory_bytes",
    "host_cores": "host_cores",
    "storage_gb_per_second": "storage_bandwidth_bytes_per_second",
    "gpu_hours_per_failure": "gpu_seconds_per_failure",
    "restart_minutes": "restart_seconds",
}

_BANDWIDTH_KEYS = (
    "gb_per_second_per_gpu",
    "gb_per_second_per_node",
    "gbit_per_second_per_gpu",
    "gbit_per_second_per_node",
)


def to_accelerator(file: AcceleratorFile, where: str) -> Accelerator:
    """The noun in SI units; raises ToolkitError for figures that cannot be."""
    stated = file.source or f"stated in {where}"
    with Problems() as problems:
        _plain_name(problems, where, file.name)
        _positive(problems, where, file, "memory_gib", "memory_bandwidth_gb_per_second")
        _not_negative(
            problems, where, file, "driver_total_mib", "host_link_gb_per_second", "price_per_hour", "marketed_memory_gb"
        )
        if file.architecture not in ARCHITECTURES:
            problems.add(
                f"{where}: unknown architecture {file.architecture!r}",
                f"{did_you_mean(file.architecture, ARCHITECTURES)} Take the nearest relative of a new one.",
            )
        if not file.peak_tflop_per_second:
            problems.add(f"{where}: peak_tflop_per_second is empty", "state at least one: { bf16 = 989 }")
        for key in ("peak_tflop_per_second", "achievable_tflop_per_second"):
            for dtype, rate in getattr(file, key).items():
                if dtype not in DTYPES:
                    problems.add(f"{where}: unknown data type {key}.{dtype}", did_you_mean(dtype, DTYPES))
                elif not rate > 0:
                    problems.add(f"{where}: {key}.{dtype} = {rate} is not positive", "leave out what it cannot do")
        for dtype, rate in file.achievable_tflop_per_second.items():
            if rate > file.peak_tflop_per_second.get(dtype, 0.0):
                problems.add(
                    f"{where}: achievable_tflop_per_second.{dtype} = {rate} is above its peak",
                    "state the dense peak, or leave the achievable rate out",
                )
    sources = {"memory_bytes": stated, "memory_bandwidth_bytes_per_second": stated, "peak_flop_per_second": stated}
    given = to_sources(file.sources, file, where)
    return Accelerator(
        name=file.name,
        aliases=file.aliases,
        vendor=file.vendor,
        architecture=file.architecture,
        memory_bytes=file.memory_gib * GIB,
        driver_total_bytes=file.driver_total_mib * MIB,
        memory_bandwidth_bytes_per_second=file.memory_bandwidth_gb_per_second * GB,
        peak_flop_per_second={dtype: rate * TERA for dtype, rate in file.peak_tflop_per_second.items()},
        achievable_flop_per_second={dtype: rate * TERA for dtype, rate in file.achievable_tflop_per_second.items()},
        host_link_bytes_per_second=file.host_link_gb_per_second * GB,
        price_per_hour=file.price_per_hour,
        source=file.source or given.get("peak_flop_per_second", stated),
        sources=sources | given,
        notes=file.notes,
    )


def check_cluster(file: ClusterFile, where: str) -> None:
    """Raises ToolkitError with everything in a cluster file that cannot be."""
    site = file.site
    with Problems() as problems:
        _plain_name(problems, where, file.name)
        if not 1 <= file.gpus_per_node <= MOST_GPUS_PER_NODE:
            problems.add(f"{where}: gpus_per_node = {file.gpus_per_node}", f"a node has 1 to {MOST_GPUS_PER_NODE} GPUs")
        elif file.fast_domain_gpus and (file.fast_domain_gpus < 1 or file.fast_domain_gpus % file.gpus_per_node):
            problems.add(
                f"{where}: fast_domain_gpus = {file.fast_domain_gpus} is not a multiple of gpus_per_node = "
                f"{file.gpus_per_node}",
                "count the GPUs of all nodes that the fast link joins, or leave it out where it ends at the node",
            )
        if not 0 <= file.nodes <= MOST_GPUS:
            problems.add(f"{where}: nodes = {file.nodes}", "say how many nodes there are, or leave it out")
        _not_negative(
            problems,
            where,
            file,
            *("host_memory_gib", "host_cores", "storage_gb_per_second", "price_per_gpu_hour"),
            *("gpu_hours_per_failure", "restart_minutes"),
        )
        for key, choices in (
            ("gpu_request", ("gpus-per-node", "gres", "none")),
            ("container_runtime", ("none", "pyxis", "apptainer")),
        ):
            if getattr(site, key) not in choices:
                problems.add(f"{where}: site.{key} = {getattr(site, key)!r}", did_you_mean(getattr(site, key), choices))
        for key in ("cpus_per_node", "max_gpus_per_node"):
            if getattr(site, key) < 0:
                problems.add(f"{where}: site.{key} = {getattr(site, key)} is negative", "leave it out for all")
        for key in site.__struct_fields__:
            value = getattr(site, key)
            texts = [value] if isinstance(value, str) else value if isinstance(value, tuple) else []
            if key != "setup_command" and any(not text.isprintable() for text in texts):
                problems.add(f"{where}: site.{key} has a control character in it", "write it on one line")
        for name, value in site.environment.items():
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                problems.add(
                    f"{where}: site.environment: {name!r} is not the name of a variable", "letters, digits and _"
                )
            if "\0" in value:
                problems.add(f"{where}: site.environment.{name} has a NUL in it", "take it out")
        if not re.fullmatch(r"([0-9]{1,9}[KMGT]?|none)?", site.memory_per_node):
            problems.add(
                f"{where}: site.memory_per_node = {site.memory_per_node!r} is no amount of Slurm's",
                'write 900G (K, M, G or T, of 1024), "0" for all of a node, or "none" to ask for nothing',
            )
        if not re.fullmatch(r"[0-9]{1,9}(-[0-9]{1,9})?(:[0-9]{1,2}){0,2}|UNLIMITED|INFINITE", site.time_limit):
            problems.add(
                f"{where}: site.time_limit = {site.time_limit!r} is not a Slurm time", "write 24:00:00 or 2-00:00:00"
            )


def to_link(file: LinkFile, gpus_in_use: int, host_link_bytes_per_second: float, where: str) -> Link:
    """A link per GPU: what a node shares is divided by its GPUs in use, and never above what one GPU can take."""
    with Problems() as problems:
        stated = [key for key in _BANDWIDTH_KEYS if getattr(file, key)]
        if len(stated) != 1:
            problems.add(
                f"{where}: {'no bandwidth' if not stated else ' and '.join(stated) + ' together'}",
                f"give exactly one, for one direction: {', '.join(_BANDWIDTH_KEYS)}",
            )
        _not_negative(problems, where, file, *_BANDWIDTH_KEYS, "peer_gb_per_second", "latency_microseconds")
    bandwidth = getattr(file, stated[0]) * GB
    if stated[0].startswith("gbit"):
        bandwidth /= BITS_PER_BYTE
    if stated[0].endswith("per_node"):
        bandwidth /= max(gpus_in_use, 1)
        if host_link_bytes_per_second:
            bandwidth = min(bandwidth, host_link_bytes_per_second)
    return Link(
        name=file.name,
        bandwidth_bytes_per_second=bandwidth,
        peer_bandwidth_bytes_per_second=file.peer_gb_per_second * GB,
        latency_seconds=file.latency_microseconds * 1e-6,
        source=file.source or f"stated in {where}",
        latency_source=file.latency_source or ("assumed" if not file.latency_microseconds else f"stated in {where}"),
    )


def usual(source: str, accelerator: str) -> str:
    """The source of a figure that a cluster leaves to the usual node of its accelerator."""
    return source if is_assumed(source) else f"assumed: as the usual node of {accelerator} ({source})"


def to_sources(sources: dict[str, str], file: msgspec.Struct, where: str) -> dict[str, str]:
    """Sources by field name instead of key name; raises ToolkitError for a source of nothing."""
    found: dict[str, str] = {}
    with Problems() as problems:
        known = [key for key in FIELD_OF_KEY if key in file.__struct_fields__]
        for name, source in sources.items():
            key, _, dtype = name.partition(".")
            if key not in known:
                problems.add(f"{where}: source of an unknown figure {name!r}", did_you_mean(key, known))
            else:
                found[FIELD_OF_KEY[key] + (f".{dtype}" if dtype else "")] = source
    return found


def _plain_name(problems: Problems, where: str, name: str) -> None:
    if not re.fullmatch(r"\w[\w .+\-]{0,99}", name):
        problems.add(
            f"{where}: name = {name[:120]!r}",
            "a name has letters, digits, blanks and . + - _ and begins with one of the first",
        )


def _positive(problems: Problems, where: str, file: Any, *keys: str) -> None:
    for key in keys:
        if not getattr(file, key) > 0:
            problems.add(f"{where}: {key} = {getattr(file, key)} is not positive", "write a number above 0")


def _not_negative(problems: Problems, where: str, file: Any, *keys: str) -> None:
    for key in keys:
        if getattr(file, key) < 0:
            problems.add(f"{where}: {key} = {getattr(file, key)} is negative", "write 0 or more, or leave it out")
