"""Offloaded updates: what crosses the host link, and how often."""

import pytest
from msgspec.structs import replace

from tests.estimate.machines import CALIBRATION, cluster, llama
from toolkit.estimate.communication import communication
from toolkit.estimate.step import step
from toolkit.estimate.update import copy_seconds, host_adam_seconds, offload_copies
from toolkit.strategy import Strategy
from toolkit.workload import Workload


def test_gradients_go_down_once_and_parameters_come_up_twice_for_each_micro_batch() -> None:
    """Forward and backward each fetch the parameters (ZeRO-Infinity, arXiv 2104.07857, section 5)."""
    down = copy_seconds(1e9 * 4, 2.0, 50e9)
    assert offload_copies(1e9, 1e9, 4, 0, 2.0, 2.0, 50e9) == 0.0
    assert offload_copies(1e9, 1e9, 4, 1, 2.0, 2.0, 50e9) == pytest.approx(down)
    assert offload_copies(1e9, 1e9, 4, 2, 2.0, 2.0, 50e9) == pytest.approx(3 * down)
    assert offload_copies(1e9, 0.0, 4, 2, 2.0, 2.0, 50e9) == pytest.approx(2 * down)  # frozen: only fetched


def test_adam_of_16_bit_states_moves_half_as_much_on_the_host() -> None:
    """arXiv 2101.06840, table 4: 10 B parameters in 2.2 to 2.6 s; weights and states in bf16 are 14 of 28 bytes."""
    assert 2.2 < host_adam_seconds(10e9, 1, 4e9, 28.0) < 2.6
    strategy = Strategy(framework="fsdp", dp=8, dp_shard=8, zero_stage=3, offload=1)
    arguments = [
        (llama(32, 4096, 32), cluster(8), Workload(weights=weights), strategy) for weights in ("default", "bf16")
    ]
    wide, narrow = (step(*each, communication(*each, CALIBRATION), CALIBRATION).optimizer_seconds for each in arguments)
    assert narrow == pytest.approx(wide / 2.0)


def test_the_host_link_is_reached_in_part() -> None:
    """The copies after an offloaded step take longer by what the calibration says the link does not reach."""
    strategy = Strategy(framework="deepspeed", dp=8, dp_shard=8, zero_stage=2, offload=1)
    arguments = (llama(32, 4096, 32), cluster(8), Workload(sequence_length=4096), strategy)

    def offload(fraction: float) -> float:
        known = CALIBRATION.coefficients | {
            "host_link_fraction": replace(CALIBRATION.coefficients["host_link_fraction"], value=fraction)
        }
        calibration = replace(CALIBRATION, coefficients=known)
        return float(step(*arguments, communication(*arguments, calibration), calibration).offload_seconds)

    assert offload(0.4) > 1.5 * offload(0.8) > 0.0
