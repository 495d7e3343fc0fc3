"""States: what a framework keeps for the parameters of one stage, by when it is alive."""

from __future__ import annotations

from typing import NamedTuple

from toolkit.numeric import Number


class Share(NamedTuple):
    """Parameters of one stage on one rank, before any data-parallel sharding. Counts, not bytes.

    Frozen parameters (the base model under LoRA) have no gradient and no optimizer state. Of them ``packed``
    are held in 4 bits. ``root`` is what lies outside the layers: embedding, head, final norm, other parts.
    """

    trained: Number  # without routed experts
    experts: Number  # trained, in routed experts
    frozen: Number
    packed: Number
    root: Number
    layer: Number  # the largest layer
    largest: Number  # the largest single tensor
    small: float
    tail: Number  # what FSDP2 shards as its last unit: head and final norm, with tied weights the embedding
    tensors: tuple[float, ...]  # trained tensors in the order in which DeepSpeed flattens them, before tp


class States(NamedTuple):
    """Bytes by lifetime.

    ``parameters``, ``optimizer``, ``gradients`` and ``buffers`` are alive all the time. ``accumulated``
    gradients survive from one micro batch to the next; ``final`` are the transient gradients when the last
    backward pass ends; ``backward`` buffers exist while a layer's backward runs; ``step`` is everything
    transient that is alive at the peak of the optimizer step. ``loss`` are buffers while the loss is computed,
    ``loss_backward`` while its gradient is, ``head`` while the head's gradient is reduced. ``handed`` are the
    transient gradients that wait for the step, once what was only needed to reduce them is gone. ``block`` is
    the part of ``step`` in single tensors larger than an activation: freed memory has no block for them, so the
    allocator takes them anew.
    ``casts`` are copies of parameters that live from the forward pass to their layer's backward.
    """

    parameters: Number
    optimizer: Number
    gradients: Number
    buffers: Number
    accumulated: Number
    final: Number
    backward: Number
    step: Number
    loss: Number = 0.0
    loss_backward: Number = 0.0
    head: Number = 0.0
    handed: Number = 0.0
    block: Number = 0.0
    casts: Number = 0.0
