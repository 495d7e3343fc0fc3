"""How many layers each pipeline stage holds, for any number of layers that megatron-core can split.

Four ways, the first that applies (``L`` layers, ``p`` stages, ``v`` virtual stages):

    even         L       is a multiple of p * v: every stage has L / p
    both ends    L + 2   is a multiple of p * v: embedding and head count as a layer, first and last have one fewer
    head         L + 1   is a multiple of p * v: the head counts as a layer, the last stage has one fewer
    ends         v = 1:  middle stages have ceil(L / p), the first and last share the rest

Source: megatron-core 0.16.1 transformer_config.py:1294-1480 (``account_for_embedding_in_pipeline_split``,
``account_for_loss_in_pipeline_split``, ``num_layers_in_first_pipeline_stage``, ``..._last_...``).
Llama 3 405B trained its 126 layers this way on 16 stages (arXiv:2407.21783, section 3.3.2).
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.numeric import Number, ceil_div, where

EVEN, BOTH_ENDS, HEAD, ENDS, IMPOSSIBLE = range(5)


class PipelineSplit(NamedTuple):
    """Layers of the first, each middle, and the last stage; ``way`` is one of the constants above."""

    way: Number
    first: Number
    middle: Number
    last: Number


def pipeline_split(layers: int, pp: Number, virtual_pipeline_stages: Number = 1) -> PipelineSplit:
    """The split of ``layers`` over ``pp`` stages, scalar or columns.

    With one stage ``first``, ``middle`` and ``last`` are all the layers. Where nothing is possible the
    numbers are those of both ends, with a chunk that has no layers (some forks of Megatron-LM take it), or else those
    of the even split rounded up.
    """
    chunks = pp * virtual_pipeline_stages
    several = pp > 1
    size = ceil_div(layers, pp)  # of a middle stage; with the ends counted too it is (L + 2) / p or (L + 1) / p
    rest = layers - (pp - 2) * size
    ended = several & ((layers + 2) % chunks == 0)
    both = ended & ((layers + 2) // pp > virtual_pipeline_stages)
    head = several & ((layers + 1) % chunks == 0) & ((layers + 1) // pp > virtual_pipeline_stages)
    ends = several & (virtual_pipeline_stages == 1) & (rest >= 2) & (rest <= 2 * size)
    way = where(
        layers % chunks == 0,
        EVEN,
        where(both, BOTH_ENDS, where(head, HEAD, where(ends, ENDS, IMPOSSIBLE))),
    )
    last_of_ends = rest // 2
    both = (way == BOTH_ENDS) | ((way == IMPOSSIBLE) & ended)
    counted = where(both, layers + 2, where(way == HEAD, layers + 1, layers))
    middle = ceil_div(counted, pp)
    first = where(both, middle - 1, where(way == ENDS, rest - last_of_ends, middle))
    last = where(both | (way == HEAD), middle - 1, where(way == ENDS, last_of_ends, middle))
    return PipelineSplit(way, first, middle, last)
