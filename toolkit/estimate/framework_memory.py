"""Equations M11..M13: what lies outside the model: context, communicator buffers, workspaces, fragmentation."""

from __future__ import annotations

from toolkit.calibration import Calibration
from toolkit.cluster import Accelerator
from toolkit.equation import equation
from toolkit.estimates import MemoryEstimate
from toolkit.numeric import Number, where
from toolkit.strategy import Strategy


@equation("M11", "1 + [tp > 1] + [pp > 1] + [cp > 1] + [ep > 1] + [dp > 1]")
def communicators(tp: Number, pp: Number, cp: Number, ep: Number, dp: Number) -> Number:
    """Communicators that allocate buffers on a rank: one for all ranks and one for each axis in use.

    Source: process groups of megatron-core 0.16.1 ``parallel_state.py``; NCCL allocates on first use.
    """
    return 1.0 + sum(where(degree > 1, 1.0, 0.0) for degree in (tp, pp, cp, ep, dp))


@equation("M12", "phi*D")
def fragmentation_bytes(fraction: float, dynamic: Number) -> Number:
    """Memory that the caching allocator reserves beyond what is allocated: a fraction of what comes and goes.

    Source: calibration coefficient ``fragmentation_fraction``.
    """
    return fraction * dynamic


@equation("M13", "context + workspace + n_c*buffer + phi*D")
def framework_bytes(context: float, workspace: float, buffers: Number, fragmentation: Number) -> Number:
    """Device memory beside the model's own tensors. ``nvidia-smi`` sees all of it, the allocator only part.

    Source: the calibration coefficients of the same names.
    """
    return context + workspace + buffers + fragmentation


def outside_model(
    accelerator: Accelerator, strategy: Strategy, calibration: Calibration, dynamic: Number, anew: Number = 0.0
) -> Number:
    """The framework part of an estimate; a CPU has neither context nor device buffers.

    ``anew`` is what an engine takes beside its tensors, and blocks that fit nothing that was freed.
    """
    if accelerator.is_cpu:
        return 0.0 * dynamic
    axes = communicators(strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.dp)
    return anew + framework_bytes(
        calibration["context_bytes"],
        calibration["workspace_bytes"],
        axes * calibration["communicator_bytes"],
        fragmentation_bytes(calibration["fragmentation_fraction"], dynamic),
    )


def as_measured(
    estimate: MemoryEstimate, accelerator: Accelerator, strategy: Strategy, calibration: Calibration, basis: str
) -> Number:
    """The part of an estimate that a measurement sees.

    ``allocated`` and ``reserved`` are PyTorch's ``max_memory_allocated`` and ``max_memory_reserved``: neither
    sees the context or communicator buffers, and the first no fragmentation. Any other basis (``device``, as
    in ``nvidia-smi``, or not stated) sees everything.
    """
    total = estimate.total_bytes
    if accelerator.is_cpu or basis not in ("allocated", "reserved"):
        return total
    axes = communicators(strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.dp)
    outside = calibration["context_bytes"] + axes * calibration["communicator_bytes"]
    if basis == "reserved":
        return total - outside
    return total - estimate.framework_bytes + calibration["workspace_bytes"]
