"""Equations T10 and T11: the pipeline bubble.

Symbols: ``p`` stages, ``m`` micro batches, ``v`` virtual stages per GPU, ``t`` seconds of one stage for forward
and backward of one micro batch. Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2. Left out:
zero-bubble and DualPipe schedules.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.numeric import Number


@equation("T10", "(p - 1)/v*t")
def bubble_seconds(pipeline: Number, virtual: Number, stage_seconds: Number) -> Number:
    """Idle seconds of one step while the pipeline fills and drains (1F1B; interleaving divides by ``v``).

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
    """
    return (pipeline - 1.0) / virtual * stage_seconds


@equation("T11", "(p - 1)/(v*m)")
def bubble_fraction(pipeline: Number, micro_batches: Number, virtual: Number) -> Number:
    """Bubble over ideal compute when all stages are equal: ``(p - 1) / m``, and ``/ v`` interleaved.

    Source: the same.
    """
    return (pipeline - 1.0) / (1.0 * virtual * micro_batches)
