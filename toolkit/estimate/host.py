"""Equations M16..M19: host memory of one node, all of its ranks together.

Offload keeps per rank what DeepSpeed 0.19.8 was seen to allocate on the CPU: 18 bytes per parameter of the
shard (16-bit copy 2, float32 gradients 4, master 4, Adam 8), 2 more when the parameters move too, and a pinned
copy buffer of the largest tensor. A paged optimizer's states may all move to the host. Left out: shared memory of data
loaders, the page cache. Offload to NVMe is not planned; what its buffers take is M21.
"""

from __future__ import annotations

from toolkit.calibration import Calibration
from toolkit.cluster import ClusterSpec
from toolkit.equation import equation
from toolkit.estimate.layout import Tables, tables
from toolkit.estimate.partition import fullest_partition
from toolkit.estimate.precision import PAGED, state_precision, value_bytes
from toolkit.estimate.preference import is_preference, reference_memory
from toolkit.estimates import HostMemoryEstimate
from toolkit.model import ModelSpec
from toolkit.numeric import Number, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload

CHECKPOINT_SHARD = 5.0e9  # bytes of one file of a sharded checkpoint (transformers 5.24, max_shard_size 5 GB)


@equation("M16", "r*process")
def process_bytes(ranks: float, bytes_per_process: float) -> float:
    """Interpreters, libraries, the host side of CUDA, data loaders: ``r`` ranks on the node.

    Source: calibration coefficient ``host_process_bytes``.
    """
    return ranks * bytes_per_process


@equation("M17", "r*(P/W*(b + 4 + 4 + s + [parameters]*b)*pin + [stage < 3]*b*n_max + [m > 1, stage 2]*b*G_r)")
def offload_bytes(
    ranks: float,
    shard: Number,
    bytes_per_parameter: Number,
    pinned: float,
    copy_buffer: Number,
    accumulated: Number,
) -> Number:
    """States of the node's ranks under offload.

    Source: DeepSpeed 0.19.8 ``stage_1_and_2.py:570-590,653``, ``stage3.py:791,1150``. ``pin`` is what the
    pinned allocator adds by rounding blocks up to powers of two.
    """
    return ranks * (shard * bytes_per_parameter * pinned + copy_buffer + accumulated)


@equation("M18", "r*P*b")
def replicated_loading_bytes(ranks: float, parameters: Number, bytes_per_value: float) -> Number:
    """Every rank reads the whole model before it is sharded or copied to the device (DDP, ZeRO-0, 1, 2).

    Source: ``from_pretrained`` of transformers 5.24, which each rank calls.
    """
    return ranks * parameters * bytes_per_value


@equation("M19", "P*b_1 + r*min(P*b, file)")
def sharded_loading_bytes(
    ranks: float, parameters: Number, first_rank: float, bytes_per_value: float, shard: float
) -> Number:
    """One rank reads the model whole (FSDP: float32), or every rank holds one checkpoint file (ZeRO-3).

    Source: ``fsdp_cpu_ram_efficient_loading`` of accelerate 1.15; ``zero.Init`` in transformers 5.24.
    """
    return parameters * first_rank + ranks * minimum(parameters * bytes_per_value, shard)


@equation("M21", "r*c*4*3*min(P/W, sub_group)")
def swap_buffer_bytes(ranks: float, shard: Number, sub_group: float, buffer_count: float) -> Number:
    """Host memory of the buffers through which DeepSpeed swaps optimizer states to NVMe, all ranks of a node.

    ``c`` buffers of one float32 sub group each for master copy and both moments. Source: DeepSpeed 0.19.8
    ``runtime/zero/offload_config.py`` (``buffer_count`` 4), ``swap_tensor/partitioned_optimizer_swapper.py``;
    microsoft/DeepSpeed#4867 (a 15.5B on a node of 256 GB was killed with NVMe offload).
    """
    return ranks * buffer_count * (4.0 * 3.0) * minimum(shard, sub_group)


def host_memory(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy, calibration: Calibration
) -> HostMemoryEstimate:
    """Host memory of the fullest node, by component. Scalars or columns."""
    table = tables(model, workload, strategy.framework)
    ranks = 1.0 * min(cluster.gpus_per_node, cluster.num_gpus)
    pinned = calibration["pinned_overhead"]
    offloaded = _offload(workload, strategy, pinned, table, ranks)
    loading = _loading(workload, strategy, table, ranks)
    if is_preference(workload) and workload.method == "full":  # the reference is loaded beside the model
        offloaded = offloaded + ranks * pinned * reference_memory(model, workload, strategy, table)[1]
        loading = 2.0 * loading
    return HostMemoryEstimate(
        process_bytes=process_bytes(ranks, calibration["host_process_bytes"]),
        offload_bytes=offloaded,
        loading_bytes=loading,
    )


def offloaded_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> Number:
    """What one rank offloads, without what the pinned allocator adds by rounding."""
    return _offload(workload, strategy, 1.0, tables(model, workload, strategy.framework), 1.0)


def _offload(workload: Workload, strategy: Strategy, pinned: float, table: Tables, ranks: float) -> Number:
    total = 1.0 * table.counted.total
    trained = 1.0 * (table.adapters or table.counted.total)
    precision = state_precision(workload, strategy.framework)
    value = precision.parameters
    world = 1.0 * strategy.dp * strategy.cp
    # float32 gradients and master copy; FSDP's parameters are the master copy
    per_parameter = precision.optimizer_states + 4.0 + (value if strategy.framework == "fsdp" else value + 4.0)
    moved = value_bytes(workload) * (total - trained) if strategy.framework == "fsdp" else value * total
    parameters_too = where(strategy.offload == 2, moved / world, 0.0)
    accumulated: Number = 0.0
    copy_buffer: Number = 0.0
    if strategy.framework == "deepspeed":  # at stage 2 gradients of whole tensors wait on the host for the next one
        largest = minimum(1.0 * table.counted.largest_tensor, trained)
        copy_buffer = where(strategy.zero_stage < 3, value * largest, 0.0)
        waiting = (strategy.zero_stage == 2) & (strategy.gradient_accumulation_steps > 1)
        touching = minimum(trained, fullest_partition(table.tensors, strategy.dp * strategy.cp * strategy.tp))
        accumulated = where(waiting, value * touching, 0.0)
    states = offload_bytes(
        ranks,
        trained / world,
        per_parameter,
        pinned,
        copy_buffer + parameters_too * pinned,
        accumulated,
    )
    over = where(strategy.zero_stage > 0, world, 1.0)
    paged = ranks * precision.optimizer_states * trained / over if workload.optimizer in PAGED else 0.0
    return where(strategy.offload > 0, states, paged)


def _loading(workload: Workload, strategy: Strategy, table: Tables, ranks: float) -> Number:
    total = 1.0 * table.counted.total
    value = value_bytes(workload)
    if strategy.framework == "megatron":  # built on the device; a rank stages its own part of a checkpoint
        part = total / (1.0 * strategy.tp * strategy.pp)
        over = where(strategy.zero_stage > 0, 1.0 * strategy.dp * strategy.cp, 1.0)
        return replicated_loading_bytes(ranks, part * (1.0 + 12.0 / (value * over)), value)
    if strategy.framework == "fsdp":
        return sharded_loading_bytes(0.0, total, 4.0, value, 0.0) + 0.0 * strategy.dp
    whole = replicated_loading_bytes(ranks, total, value)
    pieces = sharded_loading_bytes(ranks, total, 0.0, value, CHECKPOINT_SHARD)
    return where(strategy.zero_stage == 3, pieces, whole)
