"""All estimates at once."""

import msgspec
import pytest

from tests.estimate.machines import CALIBRATION, cluster, llama, timed
from toolkit.equation import trace
from toolkit.estimate.evaluate import evaluate
from toolkit.strategy import Strategy
from toolkit.workload import Workload


@pytest.mark.parametrize("framework", ["ddp", "deepspeed", "fsdp", "megatron"])
def test_evaluate_joins_the_four(framework: str) -> None:
    """The same communication and step as alone, with memory on device and host."""
    model, machines, workload = llama(), cluster(64), Workload(global_batch_size=64)
    strategy = Strategy(framework=framework, dp=64, dp_shard=64, zero_stage=0 if framework == "ddp" else 1)
    estimate = evaluate(model, machines, workload, strategy, CALIBRATION)
    assert (estimate.communication, estimate.step) == timed(model, machines, workload, strategy)
    assert estimate.memory.total_bytes > 16e9
    assert estimate.host_memory.total_bytes > 0


def test_a_trace_explains_the_step() -> None:
    """Every kind of equation leaves its anchor, and tracing changes no number."""
    model, machines, workload = llama(), cluster(64), Workload(global_batch_size=64)
    strategy = Strategy(framework="megatron", tp=4, pp=2, dp=8, dp_shard=8, zero_stage=1, sequence_parallel=1)
    plain = evaluate(model, machines, workload, strategy, CALIBRATION)
    with trace() as steps:
        traced = evaluate(model, machines, workload, strategy, CALIBRATION)
    assert msgspec.structs.asdict(traced.step) == msgspec.structs.asdict(plain.step)
    anchors = {step.anchor for step in steps}
    assert {"F1", "F2", "C1", "C4", "C9", "C16", "T1", "T5", "T10", "T12"} <= anchors
