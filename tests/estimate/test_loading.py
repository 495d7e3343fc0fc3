"""Host memory while a checkpoint of ZeRO gets to other ranks."""

import pytest

from toolkit.estimate.loading import conversion_bytes, elastic_loading_bytes


def test_a_model_of_5e9_that_went_from_4_to_32_gpus() -> None:
    """DeepSpeed#1111: 60 GB for each rank, 480 GB for a node of 8."""
    assert elastic_loading_bytes(1.0, 5.0e9) == pytest.approx(60e9)
    assert elastic_loading_bytes(8.0, 5.0e9) == pytest.approx(480e9)


def test_converting_it_takes_one_shard_and_one_tensor() -> None:
    assert conversion_bytes(5.0e9, 4, 2.0e8) == pytest.approx(15e9 + 2.4e9)
