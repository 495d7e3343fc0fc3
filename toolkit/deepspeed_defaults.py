"""Sizes that the emitted DeepSpeed files state and that the memory model counts: one place, so they agree.

All sizes are in elements, as in DeepSpeed's own files. Source: transformers 5.24.0
``integrations/deepspeed.py`` (``trainer_config_finalize``: what it writes for ``"auto"``) and DeepSpeed
0.19.8 ``runtime/zero/config.py`` (the defaults).
"""

from __future__ import annotations

OVERLAP_COMM = True  # reduction runs beside the backward pass; stages 1 and 2 then hold two buckets
CONTIGUOUS_GRADIENTS = True
MAX_LIVE_PARAMETERS = 1_000_000_000  # stage 3: gathered parameters that may stay on the device
MAX_REUSE_DISTANCE = 1_000_000_000
SUB_GROUP_SIZE = 1_000_000_000  # stage 3: elements that one optimizer call updates
PIN_MEMORY = True
SWAP_BUFFERS = 4  # of a swap of optimizer states to NVMe


def reduce_bucket_elements(hidden_size: int) -> int:
    """``h^2``: gradients that one reduction joins."""
    return hidden_size * hidden_size


def prefetch_bucket_elements(hidden_size: int) -> int:
    """``int(0.9 h^2)``: parameters fetched ahead at stage 3. An integer: DeepSpeed refuses 15099494.4."""
    return int(0.9 * hidden_size * hidden_size)


def persistence_threshold_elements(hidden_size: int) -> int:
    """``10 h``: parameters smaller than this are never partitioned at stage 3."""
    return 10 * hidden_size
