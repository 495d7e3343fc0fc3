"""Accelerator, Link, Site and ClusterSpec: the machines that a plan runs on, in SI units."""

from __future__ import annotations

import msgspec


def is_assumed(source: str) -> bool:
    """Whether a source says that its figure is an assumption (or says nothing at all)."""
    return not source or source.casefold().startswith("assumed")


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device as the scheduler and the framework see it (one GCD of an MI250X, not the package).

    ``memory_bytes`` is what the driver lets a process use, not the marketed size; ``driver_total_bytes``
    is the slightly larger total that nvidia-smi prints, where it is known.
    ``peak_flop_per_second`` holds dense peaks by dtype (bf16, fp16, fp8, tf32, fp32): a dtype that is
    not there is one that the hardware does not have.
    ``achievable_flop_per_second`` holds the best matrix product ever measured, where someone did.
    ``sources`` names the source of each figure by the field's name (``peak_flop_per_second.tf32`` for
    one dtype); a source that begins with ``assumed`` marks a figure that nobody looked up or measured.
    """

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str = "NVIDIA"
    architecture: str = ""  # volta, ampere, ada, hopper, blackwell, cdna3, cpu ...
    memory_bytes: float
    driver_total_bytes: float = 0.0
    memory_bandwidth_bytes_per_second: float
    peak_flop_per_second: dict[str, float]
    achievable_flop_per_second: dict[str, float] = {}
    host_link_bytes_per_second: float = 0.0  # PCIe or C2C, one direction: used by offload
    launch_seconds: float = 0.0  # to start a kernel, where a calibration measured it; 0: by data/efficiency
    price_per_hour: float = 0.0
    source: str
    sources: dict[str, str] = {}
    notes: str = ""

    @property
    def supports_bf16(self) -> bool:
        """Whether matrix products in bf16 run in hardware (not on V100 and T4)."""
        return "bf16" in self.peak_flop_per_second

    @property
    def supports_fp8(self) -> bool:
        """Whether matrix products in fp8 run in hardware (Ada, Hopper, Blackwell, CDNA3 and later, Gaudi)."""
        return "fp8" in self.peak_flop_per_second

    @property
    def is_cpu(self) -> bool:
        """Whether the work is done by processors, without a device of its own."""
        return self.architecture == "cpu"

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of the figures whose source is an assumption."""
        return tuple(name for name, source in self.sources.items() if is_assumed(source))


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A connection, described per GPU and per direction.

    ``bandwidth_bytes_per_second`` is the raw rate of the link (data sheet, all its lanes together); what
    collectives reach of it is the business of data/efficiency. ``peer_bandwidth_bytes_per_second`` is
    what one single peer gets where there is no switch (xGMI mesh); 0 means all of it.
    ``latency_seconds`` is that of the wire for one small message, one hop, without the software above it.
    """

    name: str
    bandwidth_bytes_per_second: float
    peer_bandwidth_bytes_per_second: float = 0.0
    latency_seconds: float
    # what collectives reached and the time to start one, where a calibration measured them; 0: by data/efficiency
    ring_bytes_per_second: float = 0.0
    all_reduce_bytes_per_second: float = 0.0
    start_seconds: float = 0.0
    source: str = "assumed"
    latency_source: str = "assumed"


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How this place wants its jobs: what goes into the sbatch header and around the command."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    time_limit: str = "24:00:00"
    gpu_request: str = "gpus-per-node"  # gpus-per-node | gres | none (machines without GPUs)
    gpu_type: str = ""  # --gres=gpu:TYPE:N
    exclusive: bool = True
    cpus_per_node: int = 0
    memory_per_node: str = ""  # "0" asks for all of it
    max_gpus_per_node: int = 0  # what a job may have of one node; 0 means all
    modules: tuple[str, ...] = ()
    container_runtime: str = "none"  # none | pyxis | apptainer
    container_image: str = ""
    container_mounts: tuple[str, ...] = ()
    setup_command: str = ""  # e.g. "source /path/to/venv/bin/activate", run on the batch host and inherited
    environment: dict[str, str] = {}
    network_interface: str = ""  # NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``nodes`` equal nodes of ``gpus_per_node`` equal accelerators.

    ``fast_domain_gpus`` is how many GPUs the fast (intra-node class) link joins: usually
    ``gpus_per_node``; 72 on an NVL72 rack whose schedulable nodes hold 4. Host memory and cores are
    what one node gives to the job. ``storage_bandwidth_bytes_per_second`` is that of the shared file
    system for all nodes of the job together; 0 means unknown, there and of failures. ``sources`` is as in Accelerator.
    """

    name: str
    accelerator: Accelerator
    nodes: int = 1
    gpus_per_node: int = 8
    fast_domain_gpus: int = 0
    intra_node: Link
    inter_node: Link
    host_memory_bytes: float = 0.0
    host_cores: int = 0
    storage_bandwidth_bytes_per_second: float = 0.0
    gpu_seconds_per_failure: float = 0.0  # how long one GPU (with its share of the rest) runs between failures
    restart_seconds: float = 0.0  # from a failure to reading the checkpoint: detection, new nodes, start
    site: Site = msgspec.field(default_factory=Site)
    source: str = ""
    sources: dict[str, str] = {}
    notes: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """All accelerators of the request."""
        return self.nodes * self.gpus_per_node

    @property
    def fast_domain(self) -> int:
        """GPUs that reach each other over the intra-node link."""
        return self.fast_domain_gpus or self.gpus_per_node

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of the figures whose source is an assumption; those of the accelerator carry its name."""
        found = [name for name, source in self.sources.items() if is_assumed(source)]
        for place in ("intra_node", "inter_node"):
            link = getattr(self, place)
            found += [f"{place}.bandwidth_bytes_per_second"] * is_assumed(link.source)
            found += [f"{place}.latency_seconds"] * is_assumed(link.latency_source)
        return (*(f"accelerator.{name}" for name in self.accelerator.assumed), *found)
