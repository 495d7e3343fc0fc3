"""Full recomputation of some layers lies between none and all, in equal steps."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.machines import CALIBRATION, cluster, gpt, llama
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.recomputation import partly_recomputed_bytes, recomputed_share
from toolkit.model import ModelSpec
from toolkit.strategy import Strategy
from toolkit.workload import Workload


@given(st.integers(0, 200), st.integers(1, 200))
def test_the_share_is_a_share(recompute_layers: int, layers: int) -> None:
    share = recomputed_share(recompute_layers, layers)
    assert share == (1.0 if recompute_layers == 0 else min(recompute_layers, layers) / layers)
    assert numpy.asarray(recomputed_share(numpy.array([recompute_layers]), layers)).item() == share
    assert partly_recomputed_bytes(share, 10.0, 100.0) == pytest.approx(100.0 - 90.0 * share)


def test_activations_fall_by_what_one_layer_keeps() -> None:
    """megatron-core 0.16.1, block: each of the first N layers keeps its input (2 s b h) instead of everything.

    From one number to the next as much goes each time, beginning with no recomputation.
    """
    model, machines, workload = llama(), cluster(8), Workload(sequence_length=2048, global_batch_size=8)

    def kept(recompute: int, number: int) -> float:
        s = Strategy(framework="megatron", dp=8, dp_shard=8, recompute=recompute, recompute_layers=number)
        return evaluate(model, machines, workload, s, CALIBRATION).memory.activations_bytes

    none = kept(0, 0)
    steps = [
        before - after
        for before, after in zip(
            [none, *(kept(2, n) for n in range(1, 31))], [kept(2, n) for n in range(1, 32)], strict=True
        )
    ]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
    inputs = 2.0 * 2048 * model.hidden_size
    assert kept(2, 31) - kept(2, 0) < steps[0] + inputs  # the last step brings one layer's working set


def test_tensor_parallel_collectives_follow() -> None:
    """A layer that runs again sends again: a third pass for 6 of 24 layers is a quarter of one."""
    model, machines, workload = gpt(24, 2048, 16), cluster(8), Workload(sequence_length=1024)
    sent = [
        evaluate(
            model, machines, workload,
            Strategy(framework="megatron", tp=8, etp=8, recompute=r, recompute_layers=n), CALIBRATION,
        ).communication.tp_bytes
        for r, n in ((0, 0), (2, 6), (2, 0))
    ]  # fmt: skip
    assert sent[1] - sent[0] == pytest.approx((sent[2] - sent[0]) / 4)


def test_hardware_flop_follow() -> None:
    """HFU counts what runs again, MFU does not."""
    model, machines, workload = llama(), cluster(8), Workload(sequence_length=2048, global_batch_size=8)
    steps = [
        evaluate(
            model, machines, workload,
            Strategy(framework="megatron", dp=8, dp_shard=8, recompute=2, recompute_layers=n), CALIBRATION,
        ).step
        for n in (8, 16, 0)
    ]  # fmt: skip
    again = [step.hfu / step.mfu - 1.0 for step in steps]
    assert again[1] == pytest.approx(2.0 * again[0]) and again[2] == pytest.approx(4.0 * again[0])


@pytest.mark.parametrize("model", [gpt(12, 12288, 96), llama()], ids=lambda model: model.name)
@pytest.mark.parametrize("sequence", [512, 2048, 8192])
@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("tp", [1, 8])
def test_memory_falls_to_the_last_layer(model: ModelSpec, sequence: int, pp: int, tp: int) -> None:
    """The layer that runs again keeps its checkpoint as the input of its first norm: there is one of it, not two."""
    machines = cluster(tp * pp)
    workload = Workload(sequence_length=sequence, global_batch_size=8)
    totals = []
    for number in range(1, model.num_hidden_layers // pp + 1):
        strategy = Strategy(
            framework="megatron",
            tp=tp,
            etp=tp,
            pp=pp,
            sequence_parallel=int(tp > 1),
            gradient_accumulation_steps=8,
            recompute=2,
            recompute_layers=number,
        )
        totals.append(float(evaluate(model, machines, workload, strategy, CALIBRATION).memory.total_bytes))
    assert all(after <= before * (1.0 + 1e-12) for before, after in zip(totals, totals[1:], strict=False))
