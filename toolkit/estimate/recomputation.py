"""Equations A21 and A22: full recomputation of some layers of a stage.

Megatron's ``--recompute-method block --recompute-num-layers N`` recomputes the first ``N`` layers of each virtual
stage and keeps everything of the others. Bytes and seconds are linear in the number of layers that run again. Left
out: ``uniform`` with more than one layer in a unit, and that the first layers of a mixed stack may be smaller ones.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.numeric import Number, holds_anywhere, minimum, where


@equation("A21", "min(n, l)/l; 1 where n = 0")
def recomputed_share(recompute_layers: Number, layers: Number) -> Number:
    """Part of the ``l`` layers of a stage that full recomputation runs again; ``n`` = 0 stands for all of them.

    Source: megatron-core 0.16.1 ``core/transformer/transformer_block.py:544`` (``_checkpointed_forward``).
    """
    if not holds_anywhere(recompute_layers > 0):
        return 1.0
    return where(recompute_layers > 0, minimum(1.0 * recompute_layers, layers) / layers, 1.0)


@equation("A22", "x*inputs + (1 - x)*everything")
def partly_recomputed_bytes(share: Number, inputs: Number, everything: Number) -> Number:
    """What a stage keeps of one micro batch: the inputs of the layers that run again, everything of the others.

    ``inputs`` and ``everything`` are those of all its layers. Source: the same.
    """
    return share * inputs + (1.0 - share) * everything
