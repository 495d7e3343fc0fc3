"""Which whole tensors reach into a rank's share of the flat parameters: ZeRO-1 and 2 keep their gradients.

DeepSpeed flattens the trained parameters in the order of the model and cuts the result into equal shares; a rank
keeps the full gradient of every tensor that touches its share (0.19.8 ``stage_1_and_2.py:1016``). So what a rank
keeps depends on the rank, and with many ranks the embedding alone counts. Norms and biases lie in a second, small
flat tensor: left out.
"""

from __future__ import annotations

import functools

import msgspec

from toolkit.equation import equation
from toolkit.estimate.matrices import matrices
from toolkit.estimate.parameters import ModelParameters
from toolkit.model import ModelSpec
from toolkit.numeric import Number, each

Sizes = tuple[float, ...]  # elements of tensors, in the order in which they are flattened


@equation("M2", "max over ranks r of sum(n_i of tensors that reach into [r*P/W, (r + 1)*P/W))")
def fullest_partition(sizes: Sizes, ranks: Number) -> Number:
    """Elements of whole tensors that touch the fullest of ``W`` equal shares.

    Source: ``stage_1_and_2.py:1016`` (1,050,673,152 bytes on rank 0 of Llama-3-8B at W = 64, where 2 P / W is
    250,945,664).
    """
    return each(functools.partial(_fullest, sizes), ranks)


def first_partition(sizes: Sizes, ranks: Number) -> Number:
    """The same for the first rank, which owns the embedding or its beginning."""
    return each(lambda number: _held(sizes, number).get(0, 0.0), ranks)


@functools.lru_cache(maxsize=4096)
def _fullest(sizes: Sizes, ranks: int) -> float:
    return max(_held(sizes, ranks).values(), default=0.0)


def fullest_rank(sizes: Sizes, ranks: int) -> int:
    """The first rank whose share is touched by the most elements of whole tensors."""
    held = _held(sizes, ranks)
    most = max(held.values(), default=0.0)
    return min((rank for rank, elements in held.items() if elements == most), default=0)


def _held(sizes: Sizes, ranks: int) -> dict[int, float]:
    """Elements by rank. Of ranks inside one tensor only the first and the last are listed: the others hold no more."""
    share = -(-sum(sizes) // ranks)
    held: dict[int, float] = {}
    start = 0.0
    for size in sizes:
        if size:
            first, last = int(start // share), int((start + size - 1) // share)
            if last - first <= 2:
                touched: tuple[int, ...] = tuple(range(first, last + 1))
            else:
                touched = (first, first + 1, last)
            for rank in touched:
                held[rank] = held.get(rank, 0.0) + size
        start += size
    return held


def flat_sizes(model: ModelSpec, counted: ModelParameters) -> Sizes:
    """The matrices of a model in the order of transformers 5.24: embedding, layer by layer, head.

    A mixture's experts are one tensor each for gate and up, and for down. Of families whose matrices no field
    describes, a layer is taken for one tensor beside the largest.
    """
    if model.counted_layers:
        layers = [float(layer.total) for layer in counted.layers]
    else:
        kinds: dict[tuple[str, str], Sizes] = {}
        layers = []
        for mixer, mlp in zip(model.layer_mixers, model.layer_mlps, strict=True):
            if (mixer, mlp) not in kinds:
                alone = msgspec.structs.replace(model, num_hidden_layers=1, mixers=mixer, mlps=mlp)
                kinds[mixer, mlp] = tuple(float(m.elements * m.fused) for m in matrices(alone))
            layers += kinds[mixer, mlp]
    return (float(counted.embedding), *layers, float(counted.head))


def adapter_sizes(adapters: int, model: ModelSpec) -> Sizes:
    """Low-rank adapters, two small tensors for each matrix: taken as equally large."""
    number = 2 * max(len(model.layer_mixers), 1)
    return (1.0 * adapters / number,) * number
