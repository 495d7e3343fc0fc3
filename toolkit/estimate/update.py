"""Equations T7 to T9 and T16: the optimizer step, on the device or on the host, and copies over the host link."""

from __future__ import annotations

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.equation import equation
from toolkit.estimate.data_parallel import dense_parameters
from toolkit.estimate.matmul import Rates
from toolkit.estimate.precision import state_precision, value_bytes
from toolkit.estimate.work import LayerWork
from toolkit.numeric import Number, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload

FLOAT32_ADAM = 28.0  # bytes per parameter
LEAST_HOST_LINK = 1.0e9  # bytes/s, where an accelerator states no link to the host: slow, so assumed


@equation("T7", "P*bytes*traffic/(bandwidth*e)")
def optimizer_seconds(parameters: Number, moved: Number, bandwidth: float) -> Number:
    """The optimizer reads and writes every state once: bound by memory.

    Source: the roofline model, doi 10.1145/1498765.1498785.
    """
    return parameters * moved / bandwidth


@equation("T8", "P*bytes/(link*e)")
def copy_seconds(parameters: Number, bytes_each: float, bandwidth: float) -> Number:
    """Copies between device and host memory over the host link.

    Source: definition of bandwidth.
    """
    return parameters * bytes_each / bandwidth


@equation("T9", "P*gpus_per_node/rate*bytes/28")
def host_adam_seconds(parameters: Number, ranks_per_node: Number, rate: float, moved: float) -> Number:
    """Adam on the host: the ranks of a node share its memory bandwidth.

    ``rate`` is that of float32 Adam, which reads and writes weight and two states and reads a gradient: 28 bytes.

    Source: ZeRO-Offload, arXiv 2101.06840, table 4.
    """
    return parameters * ranks_per_node / rate * (moved / FLOAT32_ADAM)


@equation("T16", "[offload]*m*(P_trained*down/link + [parameters]*2*P*up/link)")
def offload_copies(
    held: Number, updated: Number, micro: Number, offload: Number, down_bytes: float, up_bytes: float, bandwidth: float
) -> Number:
    """Seconds on the host link in one step: gradients every micro batch; offloaded shards are read for each pass.

    Gradients are those of the ``updated`` (trained) parameters; read are all ``held`` ones, frozen or not.

    Source: ZeRO-Offload, arXiv 2101.06840, section 4; ZeRO-Infinity, arXiv 2104.07857, section 5.
    """
    down = copy_seconds(updated * micro, down_bytes, bandwidth)
    fetched = where(offload == 2, copy_seconds(held * micro * 2.0, up_bytes, bandwidth), 0.0)
    return where(offload > 0, down + fetched, 0.0)


def update_seconds(
    cluster: ClusterSpec,
    work: LayerWork,
    workload: Workload,
    s: Strategy,
    c: Calibration,
    rate: Rates,
    updated: Number,
    micro: Number,
) -> tuple[Number, Number, Number]:
    """Seconds of the update, of copies that wait for it, and of copies that may hide."""
    held, updated = updated, updated * work.trained_fraction
    each = value_bytes(workload)
    state = state_precision(workload, s.framework)
    moved = 2.0 * (state.optimizer_states + state.master + state.parameters) + state.gradients
    fused = s.framework == "megatron" and workload.kernels != "unfused"
    traffic = c["optimizer_traffic_fused"] if fused else c["optimizer_traffic_eager"]
    on_device = optimizer_seconds(updated, moved * traffic, rate.memory * c["memory_fraction"])
    node = float(cluster.gpus_per_node)
    ranks = minimum(1.0 * s.tp * s.pp * s.cp * s.dp, node)
    held_on_host = state.optimizer_states + (state.master or state.parameters)
    summed = 4.0 if state.master else state.gradients  # DeepSpeed adds up in float32 what came down in 16 bits
    on_host = host_adam_seconds(updated, ranks, c["host_adam_parameters_per_second"], 2.0 * held_on_host + summed)
    link = max(cluster.accelerator.host_link_bytes_per_second * c["host_link_fraction"], LEAST_HOST_LINK)
    up = where(s.offload > 0, copy_seconds(updated, each, link), 0.0)
    hidden = offload_copies(held, updated, micro, s.offload, each, each, link)
    return where(s.offload > 0, on_host, on_device), up, hidden


def updated_parameters(work: LayerWork, s: Strategy, layers: Number) -> Number:
    """Parameters whose optimizer states this GPU holds (fullest stage)."""
    dense = dense_parameters(work, s, layers)
    routed = layers * work.expert_parameters / (1.0 * s.ep * s.etp)
    spread = s.dp_shard * s.cp if s.framework in ("megatron", "fsdp") else s.dp * s.cp
    expert_spread = maximum(1.0 * s.tp * spread / (1.0 * s.etp * s.ep), 1.0)
    return where(s.zero_stage > 0, dense / spread + routed / expert_spread, dense + routed)
