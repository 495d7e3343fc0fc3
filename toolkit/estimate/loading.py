"""Equations M25 and M26: host memory while a ZeRO checkpoint gets to another number of ranks.

``P`` trained parameters, 12 bytes of each in the optimizer's shards (master copy and two moments in float32), ``r``
ranks on a node, ``W`` ranks that saved. Left out: the 16-bit weights, which every rank reads as well below stage 3, and
pages of the files that the kernel keeps but can drop.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.numeric import Number

OPTIMIZER_BYTES = 12.0  # of a parameter in the shards: float32 master copy, first and second moment


@equation("M25", "r*12*P")
def elastic_loading_bytes(ranks: float, parameters: Number) -> Number:
    """Host memory of a node whose ranks each read the shards of all: loading that is "elastic".

    Source: DeepSpeed ``runtime/zero/stage_1_and_2.py`` (``_restore_elastic_base_optimizer_state`` merges the states of
    all partitions on every rank); microsoft/DeepSpeed#1111, a 5B model that could not go from 4 to 32 GPUs.
    """
    return ranks * OPTIMIZER_BYTES * parameters


@equation("M26", "12*P/W + 3*4*n_max")
def conversion_bytes(parameters: Number, saved_ranks: Number, largest_tensor: Number) -> Number:
    """Host memory of the one process that writes DeepSpeed's universal form: a shard, then a tensor at a time.

    Source: DeepSpeed 0.19.8 ``checkpoint/ds_to_universal.py``, with one worker.
    """
    return OPTIMIZER_BYTES * parameters / saved_ranks + 3.0 * 4.0 * largest_tensor
