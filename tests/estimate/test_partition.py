"""The fullest share of flat parameters: against counting it tensor by tensor, and in the order of a real model."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.shapes import llama
from toolkit.estimate.parameters import count_parameters
from toolkit.estimate.partition import flat_sizes, fullest_partition, fullest_rank

sizes_of = st.lists(st.integers(1, 60), min_size=1, max_size=12).map(lambda sizes: tuple(float(s) for s in sizes))


def counted(sizes: tuple[float, ...], ranks: int) -> list[float]:
    """Elements of whole tensors on every rank, by looking at every element."""
    owners = [tensor for tensor, size in enumerate(sizes) for _ in range(int(size))]
    share = -(-len(owners) // ranks)
    return [sum(sizes[t] for t in set(owners[r * share : (r + 1) * share])) for r in range(ranks)]


@given(sizes_of, st.integers(1, 40))
def test_the_fullest_share(sizes: tuple[float, ...], ranks: int) -> None:
    held = counted(sizes, ranks)
    assert fullest_partition(sizes, ranks) == max(held)
    assert held[fullest_rank(sizes, ranks)] == max(held)


@given(sizes_of)
def test_a_column_of_ranks(sizes: tuple[float, ...]) -> None:
    column = numpy.array([1, 7, 2, 7, 30])
    assert list(fullest_partition(sizes, column)) == [fullest_partition(sizes, int(n)) for n in column]


def test_llama_is_flattened_from_embedding_to_head() -> None:
    model = llama(num_hidden_layers=2)
    h, f, kv = model.hidden_size, model.intermediate_size, model.num_key_value_heads * model.head_dim
    layer = [h * h, h * kv, h * kv, h * h, h * f, h * f, f * h]
    assert list(flat_sizes(model, count_parameters(model))) == [
        model.vocab_size * h,
        *layer,
        *layer,
        model.vocab_size * h,
    ]
