"""Step time against published measurements, and the identities that every estimate must keep."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimate.machines import A100, CALIBRATION, CPU, cluster, gpt, llama, mixture, timed
from toolkit.cluster import Link
from toolkit.strategy import CP_METHODS, Strategy
from toolkit.workload import Workload

PUBLISHED = Path(__file__).parent.parent / "published"
TABLE_5 = tomllib.loads((PUBLISHED / "korthikanti_2022.toml").read_text())["model"]
TABLE_1 = tomllib.loads((PUBLISHED / "narayanan_2021.toml").read_text())["run"]
PARTS = (
    "compute_seconds",
    "recompute_seconds",
    "exposed_tp_seconds",
    "exposed_cp_seconds",
    "exposed_ep_seconds",
    "exposed_pp_seconds",
    "exposed_dp_seconds",
    "bubble_seconds",
    "optimizer_seconds",
    "offload_seconds",
    "overhead_seconds",
)
MODELS = {"gpt": gpt(24, 2048, 16), "llama": llama(), "mixture": mixture()}
# what Megatron-LM of 2021 and 2022 ran: no flash attention, dropout, sums of gradients in 16 bits
OLD = {"precision": "fp16", "attention": "eager", "dropout": True, "gradient_accumulation_dtype": "bf16"}


def table_5_seconds(row: dict[str, Any], kept: str) -> float:
    """The predicted iteration of a row, with full or with selective recomputation and sequence parallelism."""
    workload = Workload(sequence_length=2048, global_batch_size=row["batch"], **OLD)
    strategy = Strategy(
        framework="megatron",
        tp=row["tp"],
        pp=row["pp"],
        virtual_pipeline_stages=row["virtual"],
        micro_batch_size=row["micro"],
        gradient_accumulation_steps=row["batch"] // row["micro"],
        sequence_parallel=int(kept == "selective"),
        recompute=2 if kept == "full" else 1,
    )
    model = gpt(row["layers"], row["hidden"], row["heads"], learned_positions=2048)
    return timed(model, cluster(row["tp"] * row["pp"]), workload, strategy)[1].seconds


@pytest.mark.parametrize("kept", ["full", "selective"])
@pytest.mark.parametrize("row", TABLE_5, ids=lambda row: row["name"])
def test_korthikanti_table_5(row: dict[str, Any], kept: str) -> None:
    """Eight measured iterations of 22B to 1T models, each within 8 %."""
    assert table_5_seconds(row, kept) == pytest.approx(row[kept], rel=0.08)


def test_korthikanti_table_5_mean() -> None:
    """Mean error over the table below 3 %: calculon 3.65 %, SimuMax 5.85 % (peers' own figures); in sample."""
    errors = [abs(table_5_seconds(row, kept) / row[kept] - 1) for row in TABLE_5 for kept in ("full", "selective")]
    assert sum(errors) / len(errors) < 0.03


@pytest.mark.parametrize(("cut", "measured"), [(0, 19.6), (1, 19.0)])
def test_korthikanti_table_4(cut: int, measured: float) -> None:
    """Milliseconds of one layer of 22B, forward and backward, without recomputation: within 6 %."""
    strategy = Strategy(framework="megatron", tp=8, micro_batch_size=4, sequence_parallel=cut)
    workload = Workload(sequence_length=2048, global_batch_size=4, **OLD)
    steps = [timed(gpt(layers, 6144, 64), cluster(8), workload, strategy)[1] for layers in (24, 48)]
    less, more = (step.compute_seconds + step.exposed_tp_seconds for step in steps)
    assert 1e3 * (more - less) / 24 == pytest.approx(measured, rel=0.06)


def narayanan_error(row: dict[str, Any]) -> float:
    """(predicted - measured) / measured; Megatron-LM of 2021 overlapped and fused nothing of what it does now."""
    s, h, layers = 2048.0, float(row["hidden"]), float(row["layers"])
    flop = 96.0 * row["batch"] * s * layers * h * h * (1 + s / (6 * h) + 51200 / (16 * layers * h))
    measured = flop / (row["tflops"] * 1e12 * row["gpus"])
    dp = row["gpus"] // (row["tp"] * row["pp"])
    strategy = Strategy(
        framework="megatron",
        tp=row["tp"],
        pp=row["pp"],
        dp=dp,
        dp_shard=dp,
        virtual_pipeline_stages=row["virtual"],
        micro_batch_size=row["micro"],
        gradient_accumulation_steps=row["batch"] // (row["micro"] * dp),
        recompute=2,
        tp_overlap="none",
        dp_overlap="none",
    )
    workload = Workload(sequence_length=2048, global_batch_size=row["batch"], fused_accumulation=False, **OLD)
    model = gpt(row["layers"], row["hidden"], row["heads"], learned_positions=2048)
    _, step = timed(model, cluster(row["gpus"]), workload, strategy)
    return step.seconds / measured - 1


NARAYANAN = [row for row in TABLE_1 if row["framework"] == "megatron"]


@pytest.mark.parametrize("row", NARAYANAN, ids=lambda row: row["name"])
def test_narayanan_table_1(row: dict[str, Any]) -> None:
    """Ten runs on 32 to 3,072 GPUs, each within 6 %."""
    assert abs(narayanan_error(row)) < 0.06


def test_narayanan_table_1_mean() -> None:
    """Mean error below 3 %."""
    assert sum(abs(narayanan_error(row)) for row in NARAYANAN) / len(NARAYANAN) < 0.03


degrees = st.sampled_from([1, 2, 4, 8])


@st.composite
def columns(draw: st.DrawFn) -> Strategy:
    """Sixteen strategies as columns; the framework is one for all."""
    framework = draw(st.sampled_from(["ddp", "deepspeed", "fsdp", "megatron"]))
    seed = draw(st.integers(0, 2**32 - 1))
    random = numpy.random.default_rng(seed)
    power = lambda top: 2 ** random.integers(0, top, 16)  # noqa: E731
    dp_shard = power(5)
    tp = power(4) if framework == "megatron" else 1
    return Strategy(
        framework=framework,
        tp=tp,
        pp=power(4) if framework == "megatron" else 1,
        cp=power(3) if framework == "megatron" else 1,
        ep=power(4) if framework == "megatron" else 1,
        etp=1,
        dp=dp_shard * power(3),
        dp_shard=dp_shard,
        virtual_pipeline_stages=power(3) if framework == "megatron" else 1,
        zero_stage=random.integers(0, 4, 16) if framework in ("deepspeed", "fsdp") else random.integers(0, 2, 16),
        hpz=power(4) if framework == "deepspeed" else 1,
        micro_batch_size=random.integers(1, 9, 16),
        gradient_accumulation_steps=random.integers(1, 200, 16),
        sequence_parallel=random.integers(0, 2, 16) if framework == "megatron" else 0,
        recompute=random.integers(0, 3, 16),
        recompute_layers=random.integers(0, 6, 16) if framework == "megatron" else 0,
        offload=random.integers(0, 3, 16) if framework == "deepspeed" else 0,
        cp_method=draw(st.sampled_from(CP_METHODS)) if framework == "megatron" else "p2p",
    )


workloads = st.builds(
    Workload,
    sequence_length=st.sampled_from([512, 4096, 131072]),
    method=st.sampled_from(["full", "lora", "qlora"]),
    precision=st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
    attention=st.sampled_from(["flash", "eager"]),
    optimizer=st.sampled_from(["adamw", "sgd", "adamw_8bit"]),
)


@settings(max_examples=60, deadline=None)
@given(strategy=columns(), workload=workloads, name=st.sampled_from(sorted(MODELS)))
def test_columns_equal_scalars_to_the_last_bit(strategy: Strategy, workload: Workload, name: str) -> None:
    """One formula, both modes."""
    many = timed(MODELS[name], cluster(1024), workload, strategy)
    for row in range(16):
        one = timed(MODELS[name], cluster(1024), workload, strategy.take(row))
        for wide, narrow in zip(many, one, strict=True):
            for field in wide.__struct_fields__:
                value = getattr(wide, field)
                value = value[row] if isinstance(value, numpy.ndarray) and value.ndim else value
                assert value == getattr(narrow, field), field
                assert isinstance(getattr(narrow, field), (int, float)), field


@settings(max_examples=100, deadline=None)
@given(strategy=columns(), workload=workloads, name=st.sampled_from(sorted(MODELS)))
def test_every_step_is_the_sum_of_its_parts_within_its_bounds(
    strategy: Strategy, workload: Workload, name: str
) -> None:
    """Parts are never negative; lower <= seconds <= upper; MFU <= HFU < 1."""
    _, step = timed(MODELS[name], cluster(1024), workload, strategy)
    total = sum(getattr(step, part) for part in PARTS)
    assert numpy.allclose(total, step.seconds, rtol=1e-12)
    for part in PARTS:
        assert numpy.all(numpy.asarray(getattr(step, part)) >= 0), part
    assert numpy.all(step.lower_seconds <= step.seconds)
    assert numpy.all(step.seconds <= step.upper_seconds)
    assert numpy.all(step.mfu <= step.hfu)
    gpus = strategy.tp * strategy.pp * strategy.cp * strategy.dp
    tokens = workload.global_batch_size * workload.sequence_length
    assert numpy.allclose(step.tokens_per_second_per_gpu * step.seconds * gpus, tokens, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(strategy=columns(), workload=workloads, faster=st.floats(1.0, 16.0))
def test_a_faster_link_is_never_slower(strategy: Strategy, workload: Workload, faster: float) -> None:
    """In either link, for every framework."""
    _, slow = timed(MODELS["mixture"], cluster(1024), workload, strategy)
    for machines in (cluster(1024, inside=300e9 * faster), cluster(1024, outside=25e9 * faster)):
        _, fast = timed(MODELS["mixture"], machines, workload, strategy)
        assert numpy.all(fast.seconds <= slow.seconds * (1 + 1e-12))


@settings(max_examples=40, deadline=None)
@given(strategy=columns(), workload=workloads)
def test_recomputation_never_saves_time(strategy: Strategy, workload: Workload) -> None:
    """none <= selective <= full."""
    seconds = [
        timed(
            MODELS["llama"],
            cluster(1024),
            workload,
            msgspec.structs.replace(strategy, recompute=kept, recompute_layers=0),
        )[1].seconds
        for kept in (0, 1, 2)
    ]
    assert numpy.all(seconds[0] <= seconds[1] * (1 + 1e-12))
    assert numpy.all(seconds[1] <= seconds[2] * (1 + 1e-12))


def test_no_overflow_at_the_largest_scale() -> None:
    """1T parameters, 100,000 GPUs, 60 M tokens a step, in 64-bit and 32-bit integer columns."""
    model = gpt(128, 25600, 160)
    for kind in (numpy.int64, numpy.int32):
        strategy = Strategy(
            framework="megatron",
            tp=numpy.array([8, 8], kind),
            pp=numpy.array([64, 64], kind),
            dp=numpy.array([195, 200], kind),
            dp_shard=numpy.array([195, 200], kind),
            virtual_pipeline_stages=numpy.array([2, 1], kind),
            zero_stage=1,
            micro_batch_size=numpy.array([1, 1], kind),
            gradient_accumulation_steps=numpy.array([38, 37], kind),
            sequence_parallel=1,
            recompute=numpy.array([2, 0], kind),
        )
        workload = Workload(sequence_length=8192, global_batch_size=7410)
        _, step = timed(model, cluster(99840), workload, strategy)
        assert numpy.all(step.seconds > 1) and numpy.all(step.seconds < 1000)
        assert numpy.all(step.mfu > 0.05) and numpy.all(step.mfu < 0.8)


def test_megatron_hides_gradients_longer_when_interleaved() -> None:
    """Chunks finish early: the window grows from one micro batch to p (v - 1)/v of them."""
    model, workload = gpt(96, 12288, 96), Workload(sequence_length=2048, global_batch_size=2688)
    plain, interleaved = (
        timed(
            model,
            cluster(10752),
            workload,
            Strategy(
                framework="megatron",
                tp=8,
                pp=8,
                dp=168,
                dp_shard=168,
                zero_stage=1,
                virtual_pipeline_stages=v,
                gradient_accumulation_steps=16,
                sequence_parallel=1,
            ),
        )[1]
        for v in (1, 12)
    )
    assert interleaved.exposed_dp_seconds < 0.8 * plain.exposed_dp_seconds


def test_zero_1_waits_for_its_gather() -> None:
    """DeepSpeed gathers parameters after the step: even perfect overlap leaves that exposed."""
    strategy = Strategy(framework="deepspeed", dp=64, dp_shard=64, zero_stage=1, micro_batch_size=8)
    sent, step = timed(llama(), cluster(64), Workload(), strategy)
    assert sent.dp_unhidable_seconds > 0
    assert step.exposed_dp_seconds >= sent.dp_unhidable_seconds


def test_offload_costs_copies_and_host_time() -> None:
    """Adam on the host is slower than on the device; offloaded parameters are fetched for every pass."""
    workload = Workload(sequence_length=2048, global_batch_size=64)
    seconds = []
    for offload in (0, 1, 2):
        strategy = Strategy(
            framework="deepspeed", dp=8, dp_shard=8, zero_stage=3, gradient_accumulation_steps=8, offload=offload
        )
        _, step = timed(llama(), cluster(8), workload, strategy)
        seconds.append((step.optimizer_seconds, step.offload_seconds))
    assert seconds[0][1] == 0.0
    assert seconds[1][0] > 10 * seconds[0][0]
    assert 0.0 < seconds[1][1] < seconds[2][1]


def test_zero3_waits_for_the_hooks_of_its_modules() -> None:
    """Of tiny layers the host is the slower one, and under ZeRO-3 it fetches and releases every module besides."""
    tiny = gpt(12, 256, 4, 512)
    two, three = (
        timed(
            tiny,
            cluster(8),
            Workload(sequence_length=128, global_batch_size=8),
            Strategy(framework="deepspeed", dp=8, dp_shard=8, zero_stage=stage),
        )[1]
        for stage in (2, 3)
    )
    hooks = 12 * 2 * CALIBRATION["host_layer_seconds_zero3"]
    assert three.compute_seconds - two.compute_seconds == pytest.approx(hooks)


def test_losses_for_the_logs_pass_over_the_logits() -> None:
    """Two more cross entropies of 128,256 logits in float32: 2 x 3.5 passes for every token."""
    strategy = Strategy(framework="fsdp", dp=8, dp_shard=8, zero_stage=3, micro_batch_size=8)
    plain, logged = (
        timed(llama(), cluster(8), Workload(global_batch_size=64, logged_losses=losses), strategy)[1]
        for losses in (0, 2)
    )
    fraction = CALIBRATION["memory_fraction"]
    expected = 8 * 4096 * 128256 * 4 * 7 / (A100.memory_bandwidth_bytes_per_second * fraction)
    assert logged.compute_seconds - plain.compute_seconds == pytest.approx(expected)


@pytest.mark.parametrize(("method", "low", "high"), [("lora", 0.6, 0.95), ("qlora", 0.65, 1.1)])
def test_adapters_save_the_gradient_of_the_base(method: str, low: float, high: float) -> None:
    """4N + attention instead of 6N + attention; adapters move bytes, QLoRA unpacks its weights besides."""
    strategy = Strategy(framework="deepspeed", dp=8, dp_shard=8, zero_stage=2, micro_batch_size=4)
    full = timed(llama(), cluster(8), Workload(global_batch_size=32), strategy)[1]
    adapted = timed(llama(), cluster(8), Workload(global_batch_size=32, method=method), strategy)[1]
    assert low < adapted.compute_seconds / full.compute_seconds < high


def test_two_cpu_ranks() -> None:
    """A tiny model on two processes of one machine takes milliseconds to seconds, not hours."""
    model = gpt(2, 64, 4, 256)
    machines = cluster(
        2,
        accelerator=CPU,
        intra_node=Link(name="shared memory", bandwidth_bytes_per_second=5e9, latency_seconds=20e-6),
        inter_node=Link(name="Ethernet TCP", bandwidth_bytes_per_second=1.25e9, latency_seconds=30e-6),
    )
    workload = Workload(sequence_length=128, global_batch_size=16, precision="fp32")
    strategy = Strategy(
        framework="deepspeed", dp=2, dp_shard=2, zero_stage=2, micro_batch_size=4, gradient_accumulation_steps=2
    )
    _, step = timed(model, machines, workload, strategy)
    assert 1e-3 < step.seconds < 10


def test_small_models_are_bound_by_launches() -> None:
    """A model whose kernels take no time still takes the time of starting them."""
    model, workload = gpt(12, 128, 2, 256), Workload(sequence_length=64, global_batch_size=8)
    strategy = Strategy(framework="ddp", dp=8, dp_shard=8)
    _, step = timed(model, cluster(8), workload, strategy)
    assert step.compute_seconds >= 12 * 2 * CALIBRATION["host_layer_seconds_torch"]
    assert step.mfu < 0.01


def test_peak_of_the_denominator() -> None:
    """MFU is a share of the dense peak of the workload's precision."""
    strategy = Strategy(
        framework="megatron", tp=8, sequence_parallel=1, micro_batch_size=4, gradient_accumulation_steps=8
    )
    workload = Workload(sequence_length=2048, global_batch_size=32)
    _, step = timed(gpt(48, 6144, 64), cluster(8), workload, strategy)
    flop = step.mfu * step.seconds * 8 * A100.peak_flop_per_second["bf16"]
    assert flop == pytest.approx(
        32 * 2048 * (6 * 48 * 12 * 6144**2 + 6 * 51200 * 6144 + 12 * 48 * 6144 * 2048), rel=1e-12
    )


@settings(max_examples=40, deadline=None)
@given(strategy=columns(), workload=workloads)
def test_fewer_recomputed_layers_take_less_time(strategy: Strategy, workload: Workload) -> None:
    """In proportion: layers that are not run again save what they took (A21)."""
    if strategy.framework != "megatron":
        return
    full = msgspec.structs.replace(strategy, recompute=numpy.full(16, 2))

    def seconds(number: int) -> Any:
        chosen = msgspec.structs.replace(full, recompute_layers=numpy.full(16, number))
        return timed(MODELS["llama"], cluster(1024), workload, chosen)[1].recompute_seconds

    every, none = seconds(0), timed(MODELS["llama"], cluster(1024), workload, strategy)[1].recompute_seconds * 0
    layers = numpy.ceil(32 / (strategy.pp + 0 * numpy.zeros(16)))
    for number in (1, 2, 3):
        assert numpy.allclose(seconds(number), none + every * numpy.minimum(number / layers, 1.0), rtol=1e-9)
