"""What one machine's kernels measured, put in the place of the figures that its files give: cluster to cluster, pure.

A calibration that ``toolkit profile`` wrote carries the machine: rates of matrix products by precision, the start of a
kernel, the memory's bandwidth where the data sheet's is plainly another, bandwidth and start of collectives over a
link. They replace the figures of the accelerator and the link of the same name, and of no other; the sources say so.
"""

from __future__ import annotations

import msgspec

from toolkit.calibration import Calibration, Machine
from toolkit.cluster import Accelerator, ClusterSpec, Link


def on_measured(cluster: ClusterSpec, calibration: Calibration) -> ClusterSpec:
    """The cluster with what the calibration's machine measured; the same cluster where that is another machine."""
    machine = calibration.machine
    if machine is None or machine.accelerator != cluster.accelerator.name:
        return cluster
    links = {
        place: link
        for place in ("intra_node", "inter_node")
        if (link := _link(getattr(cluster, place), machine)) is not None
    }
    return msgspec.structs.replace(cluster, accelerator=_accelerator(cluster.accelerator, machine), **links)


def machine_note(cluster: ClusterSpec, calibration: Calibration) -> str:
    """Whose rates a plan uses, or that the measured ones are of another machine; empty without a machine."""
    machine = calibration.machine
    if machine is None:
        return ""
    if machine.accelerator != cluster.accelerator.name:
        return (
            f"calibration '{calibration.reference}' was measured on {machine.accelerator}: its rates of matrix"
            f" products, memory and collectives are not used for {cluster.accelerator.name}"
        )
    rates = ", ".join(f"{rate / 1e12:.3g} TFLOP/s in {name}" for name, rate in machine.matmul_flop_per_second.items())
    names = {cluster.intra_node.name, cluster.inter_node.name}
    links = "".join(f", collectives over {name}" for name in machine.links if name in names)
    return f"rates of {machine.accelerator}: matrix products ({rates}), memory{links}: {machine.source}"


def _accelerator(accelerator: Accelerator, machine: Machine) -> Accelerator:
    achieved = accelerator.achievable_flop_per_second | machine.matmul_flop_per_second
    # nothing is faster than the peak: where it is, the stated one is another machine's
    peaks = {
        name: max(peak, machine.matmul_flop_per_second.get(name, 0.0))
        for name, peak in accelerator.peak_flop_per_second.items()
    }
    sources = dict(accelerator.sources)
    if peaks != accelerator.peak_flop_per_second:
        sources["peak_flop_per_second"] = machine.source
    if machine.memory_bytes_per_second:
        sources["memory_bandwidth_bytes_per_second"] = machine.source
    sources["achievable_flop_per_second"] = machine.source
    return msgspec.structs.replace(
        accelerator,
        achievable_flop_per_second=achieved,
        peak_flop_per_second=peaks,
        memory_bandwidth_bytes_per_second=machine.memory_bytes_per_second
        or accelerator.memory_bandwidth_bytes_per_second,
        launch_seconds=machine.launch_seconds,
        sources=sources,
    )


def _link(link: Link, machine: Machine) -> Link | None:
    found = machine.links.get(link.name)
    if found is None:
        return None
    return msgspec.structs.replace(
        link,
        bandwidth_bytes_per_second=max(found.ring_bytes_per_second, found.all_reduce_bytes_per_second),
        peer_bandwidth_bytes_per_second=0.0,
        latency_seconds=0.0,  # the start holds it: two ranks have one hop
        ring_bytes_per_second=found.ring_bytes_per_second,
        all_reduce_bytes_per_second=found.all_reduce_bytes_per_second,
        start_seconds=found.start_seconds,
        source=machine.source,
        latency_source=machine.source,
    )
