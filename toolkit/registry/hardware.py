"""What a TOML file about an accelerator or a cluster may hold, in the units people use.

Units stand in the key names and are converted once, in :mod:`toolkit.registry.conversion`. A bandwidth is one
direction, and its key says whether it belongs to one GPU or is shared by all GPUs of a node: exactly one of the four
keys is given.
"""

from __future__ import annotations

import msgspec

from toolkit.cluster import Site

ARCHITECTURES = (
    *("volta", "turing", "ampere", "ada", "hopper", "blackwell"),
    *("cdna2", "cdna3", "cdna4", "gaudi", "cpu"),
)
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")


class LinkFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link as it is written: one direction; one of the four bandwidth keys."""

    name: str
    gb_per_second_per_gpu: float = 0.0
    gb_per_second_per_node: float = 0.0
    gbit_per_second_per_gpu: float = 0.0
    gbit_per_second_per_node: float = 0.0
    peer_gb_per_second: float = 0.0
    latency_microseconds: float = 0.0
    source: str = ""
    latency_source: str = ""


class NodeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The usual node of an accelerator: taken where a cluster does not say otherwise."""

    gpus_per_node: int
    fast_domain_gpus: int = 0
    host_memory_gib: float = 0.0
    host_cores: int = 0
    sources: dict[str, str] = {}
    intra_node: LinkFile
    inter_node: LinkFile


class AcceleratorFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An accelerator as it is written. Peaks are dense; figures are per device that the scheduler hands out."""

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str = "NVIDIA"
    architecture: str
    marketed_memory_gb: float = 0.0
    memory_gib: float
    driver_total_mib: float = 0.0
    memory_bandwidth_gb_per_second: float
    peak_tflop_per_second: dict[str, float]
    achievable_tflop_per_second: dict[str, float] = {}
    host_link_gb_per_second: float = 0.0
    price_per_hour: float = 0.0
    source: str = ""
    sources: dict[str, str] = {}
    notes: str = ""
    node: NodeFile | None = None


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster as it is written. What is left out is taken from the usual node of the accelerator."""

    name: str
    aliases: tuple[str, ...] = ()
    summary: str = ""
    accelerator: str
    gpus_per_node: int
    any_gpus_per_node: bool = False  # a node holds as many workers as one asks for (CPU)
    nodes: int = 0  # how many there are; 0: as many as one asks for
    fast_domain_gpus: int = 0
    host_memory_gib: float = 0.0
    host_cores: int = 0
    storage_gb_per_second: float = 0.0
    gpu_hours_per_failure: float = 0.0
    restart_minutes: float = 0.0
    price_per_gpu_hour: float = 0.0
    intra_node: LinkFile | None = None
    inter_node: LinkFile | None = None
    site: Site = msgspec.field(default_factory=Site)
    source: str = ""
    sources: dict[str, str] = {}
    notes: tuple[str, ...] = ()
