"""Equations T10, T11, T26 and T27: the pipeline bubble, and layers beside the vocabulary.

Symbols: ``F``, ``B`` and ``W`` seconds of a stage's forward pass, gradient of activations and gradient of weights
for one micro batch, ``p`` stages, ``m`` micro batches, ``v`` virtual stages per GPU, ``t`` seconds of one stage for
forward and backward of one micro batch. Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2. Left out:
DualPipe.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.numeric import Number, ceil_div, maximum


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


@equation("T26", "(p - 1)*max(F + B - w*W, 0)")
def zero_bubble_seconds(
    pipeline: Number, forward: Number, activations: Number, weights: Number, delayed: float
) -> Number:
    """Idle seconds when gradients of weights fill the bubble: ``w`` of them for each stage that waits.

    ``w`` is 1 where as many micro batches are alive as in 1F1B (ZB-H1, ZB-1p), 2 with twice as many (ZB-H2, ZB-2p)
    or with two chunks of layers in a V (ZB-V). 1F1B in these symbols is ``(p - 1)(F + B + W)``.

    Source: Qi et al. 2024, arXiv 2401.10241, table 2 and section 6; optimizer steps do not wait for each other there.
    """
    return (pipeline - 1.0) * maximum(forward + activations - delayed * weights, 0.0)


@equation("T27", "max(ceil((L - n)/(p - 1)), n + q), n = max(floor((L + q)/p - q), 0)")
def balanced_layers(layers: int, pipeline: Number, head: Number) -> Number:
    """Layers of the slowest stage, where the last of several stages has fewer for a head that takes ``q`` layers.

    Source: layers "redistributed" in arXiv 2411.05288, section 2; ``num_layers_in_last_pipeline_stage`` of
    megatron-core 0.16.1.
    """
    last = maximum(((layers + head) / pipeline - head) // 1.0, 0.0)
    return maximum(1.0 * ceil_div(layers - last, maximum(pipeline - 1, 1)), last + head)
