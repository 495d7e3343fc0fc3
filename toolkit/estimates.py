"""What the planner says about a strategy: memory, communication, time. Scalar or columns."""

from __future__ import annotations

import msgspec

from toolkit.numeric import maximum

AXES = ("tp", "cp", "ep", "pp", "dp")
VERDICTS = ("fits", "tight", "no")  # against the memory that a process may use


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak bytes on the fullest GPU (worst pipeline stage). The total is the sum of the parts."""

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float  # master copy and optimizer states
    activations_bytes: float
    logits_bytes: float
    communication_buffers_bytes: float  # buckets, gathered parameters, prefetch
    optimizer_temporaries_bytes: float
    framework_bytes: float  # context, communicator buffers, allocator fragmentation

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return sum(getattr(self, name) for name in self.__struct_fields__)  # type: ignore[no-any-return]


class HostMemoryEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of host memory on one node, all its ranks together."""

    process_bytes: float  # interpreters, libraries, CUDA host side, loader workers
    offload_bytes: float  # optimizer states, master copy, gradients, pinned buffers
    loading_bytes: float  # peak while a checkpoint is read and sharded

    @property
    def total_bytes(self) -> float:
        """Peak: loading ends before training buffers are full, so the larger of the two counts."""
        return self.process_bytes + maximum(self.offload_bytes, self.loading_bytes)  # type: ignore[no-any-return]


class CommunicationEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Per GPU and optimizer step: bytes sent, and seconds if nothing hid them, by axis.

    ``dp_unhidable_seconds`` is the part of ``dp_seconds`` that no computation can run beside (the gather of
    parameters after the optimizer step in ZeRO-1 and ZeRO-2). ``tp_hidable_seconds`` is the part of ``tp_seconds``
    that has a product of the backward pass to run beside, ``cp_unhidable_seconds`` the part of ``cp_seconds`` that
    attention waits for (gathers and exchanges; a ring runs beside it).
    """

    tp_bytes: float = 0.0
    cp_bytes: float = 0.0
    ep_bytes: float = 0.0
    pp_bytes: float = 0.0
    dp_bytes: float = 0.0
    tp_seconds: float = 0.0
    cp_seconds: float = 0.0
    ep_seconds: float = 0.0
    pp_seconds: float = 0.0
    dp_seconds: float = 0.0
    dp_unhidable_seconds: float = 0.0
    tp_hidable_seconds: float = 0.0
    cp_unhidable_seconds: float = 0.0


class StepEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One optimizer step. ``seconds`` is the sum of the ``*_seconds`` parts.

    ``lower_seconds`` hides all communication that could be hidden, ``upper_seconds`` hides none.
    ``mfu`` counts model FLOP only, ``hfu`` also recomputation.
    """

    seconds: float
    lower_seconds: float
    upper_seconds: float
    compute_seconds: float
    recompute_seconds: float
    exposed_tp_seconds: float
    exposed_cp_seconds: float
    exposed_ep_seconds: float
    exposed_pp_seconds: float
    exposed_dp_seconds: float
    bubble_seconds: float
    optimizer_seconds: float
    offload_seconds: float
    overhead_seconds: float
    tokens_per_second_per_gpu: float
    mfu: float
    hfu: float

    @property
    def parts(self) -> dict[str, float]:
        """The seconds that sum to ``seconds``, by field."""
        names = self.__struct_fields__
        return {
            name: getattr(self, name) for name in names[names.index("compute_seconds") :] if name.endswith("_seconds")
        }


class Estimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All estimates for one strategy (or columns of them)."""

    memory: MemoryEstimate
    host_memory: HostMemoryEstimate
    communication: CommunicationEstimate
    step: StepEstimate
