"""The short name of a strategy."""

import pytest

from toolkit.strategy import Strategy, describe


@pytest.mark.parametrize(
    ("layers", "words"), [(0, "recompute-full"), (1, "recompute-1-layer"), (2, "recompute-2-layers")]
)
def test_recomputed_layers_are_counted_as_people_do(layers: int, words: str) -> None:
    assert describe(Strategy(framework="megatron", recompute=2, recompute_layers=layers)).split()[-1] == words
