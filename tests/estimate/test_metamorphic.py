"""What must hold of any model on any cluster: more work is not faster, faster hardware is not slower."""

from __future__ import annotations

import functools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimate.machines import CALIBRATION
from toolkit.cluster import ClusterSpec
from toolkit.estimate.evaluate import evaluate
from toolkit.estimates import StepEstimate
from toolkit.registry.clusters import resolve_cluster
from toolkit.registry.models import load_model
from toolkit.strategy import Strategy
from toolkit.workload import Workload

MODELS = ("gpt2-xl", "llama-2-7b", "qwen3-30b-a3b", "gpt3-175b", "llama-3.1-70b", "mixtral-8x7b")
ACCELERATORS = ("a100-40gb", "a100-80gb", "h100", "b200", "gb200", "mi300x")
STAGES = {"megatron": (0, 1), "deepspeed": (0, 1, 2, 3), "fsdp": (2, 3), "ddp": (0,)}
ROUNDING = 1e-9


@functools.cache
def _cluster(gpus: int, accelerator: str) -> ClusterSpec:
    return resolve_cluster(str(gpus), accelerator=accelerator)


def _evaluated(
    model: str, cluster: ClusterSpec, dp: int, framework: str, stage: int, recompute: int, micro: int, sequence: int
) -> StepEstimate:
    strategy = Strategy(
        framework=framework,
        zero_stage=stage,
        dp=dp,
        dp_shard=dp if stage else 1,
        micro_batch_size=micro,
        gradient_accumulation_steps=2,
        recompute=recompute,
    )
    workload = Workload(sequence_length=sequence, global_batch_size=2 * micro * dp)
    return evaluate(load_model(model), cluster, workload, strategy, CALIBRATION).step


layouts = st.sampled_from([(framework, stage) for framework, stages in STAGES.items() for stage in stages])
models, accelerators = st.sampled_from(MODELS), st.sampled_from(ACCELERATORS)
recomputes, micros = st.integers(0, 2), st.sampled_from((1, 2, 4))
powers = st.integers(3, 9)


def _growth_of_more_ranks(
    model: str, accelerator: str, layout: tuple[str, int], recompute: int, micro: int, power: int
) -> float:
    """The step on twice the GPUs over the step, both without the optimizer: a partitioned one halves with them."""
    seconds = []
    for gpus in (2**power, 2 ** (power + 1)):
        found = _evaluated(model, _cluster(gpus, accelerator), gpus, *layout, recompute, micro, 2048)
        seconds.append(float(found.seconds - found.optimizer_seconds))
    return seconds[1] / seconds[0]


@given(models, accelerators, layouts, recomputes, micros, powers)
@settings(max_examples=60, deadline=None)
def test_a_step_with_more_data_parallel_ranks_is_not_faster(
    model: str, accelerator: str, layout: tuple[str, int], recompute: int, micro: int, power: int
) -> None:
    """At a fixed batch per GPU; 1 % for the number of buckets, which Megatron makes fewer of on more ranks."""
    assert _growth_of_more_ranks(model, accelerator, layout, recompute, micro, power) >= 0.99


@pytest.mark.parametrize("accelerator", ["gb200", "gb300", "mi300x"])
def test_weak_scaling_of_megatron_in_one_large_domain(accelerator: str) -> None:
    """64 GPUs behind one NVLink switch do not pay 63 hops for each bucket, so 512 are not faster than they."""
    for power in range(3, 10):
        assert _growth_of_more_ranks("llama-2-7b", accelerator, ("megatron", 0), 0, 1, power) >= 0.99


@given(models, accelerators, layouts, recomputes, micros, st.integers(8, 14))
@settings(max_examples=60, deadline=None)
def test_a_step_of_longer_sequences_is_not_faster(
    model: str, accelerator: str, layout: tuple[str, int], recompute: int, micro: int, power: int
) -> None:
    """Also where the host that issues kernels is the slower one: its idle device is no work to do again."""
    cluster = _cluster(32, accelerator)
    short, long = (_evaluated(model, cluster, 32, *layout, recompute, micro, 2**n) for n in (power, power + 1))
    assert long.seconds >= short.seconds * (1.0 - ROUNDING)


@given(
    models,
    accelerators,
    layouts,
    recomputes,
    micros,
    st.integers(8, 14),
    st.sampled_from(("peak", "memory", "intra_node", "inter_node")),
    st.floats(1.0, 3.0),
)
@settings(max_examples=80, deadline=None)
def test_faster_hardware_is_not_slower(
    model: str,
    accelerator: str,
    layout: tuple[str, int],
    recompute: int,
    micro: int,
    power: int,
    part: str,
    factor: float,
) -> None:
    """Peak FLOP/s, memory bandwidth, and the bandwidth of either link, one at a time."""
    cluster = _cluster(32, accelerator)
    usual, fast = (
        _evaluated(model, one, 32, *layout, recompute, micro, 2**power)
        for one in (cluster, _faster(cluster, part, factor))
    )
    assert fast.seconds <= usual.seconds * (1.0 + ROUNDING)


def _faster(cluster: ClusterSpec, part: str, factor: float) -> ClusterSpec:
    if part in ("intra_node", "inter_node"):
        link = getattr(cluster, part)
        wider = msgspec.structs.replace(link, bandwidth_bytes_per_second=factor * link.bandwidth_bytes_per_second)
        return msgspec.structs.replace(cluster, **{part: wider})
    gpu = cluster.accelerator
    if part == "memory":
        changed = {"memory_bandwidth_bytes_per_second": factor * gpu.memory_bandwidth_bytes_per_second}
    else:
        names = ("peak_flop_per_second", "achievable_flop_per_second")
        changed = {name: {key: factor * rate for key, rate in getattr(gpu, name).items()} for name in names}
    return msgspec.structs.replace(cluster, accelerator=msgspec.structs.replace(gpu, **changed))


@pytest.mark.parametrize(("model", "accelerator", "stage"), [("qwen3-30b-a3b", "b200", 3), ("gpt2-xl", "gb200", 3)])
def test_selective_recomputation_does_not_redo_idle_time(model: str, accelerator: str, stage: int) -> None:
    """Where launches bound both passes, doing a part of a layer again costs no more than doing all of it again."""
    cluster, steps = _cluster(32, accelerator), []
    for power in range(8, 16):
        none, selective, full = (
            _evaluated(model, cluster, 32, "fsdp", stage, recompute, 2, 2**power) for recompute in (0, 1, 2)
        )
        assert none.seconds <= selective.seconds <= full.seconds * (1.0 + ROUNDING)
        steps.append(selective.seconds)
    assert steps == sorted(steps)
