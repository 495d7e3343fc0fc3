"""What DPO costs, against the same number of sequences without pairs: exact differences."""

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.estimate.machines import CALIBRATION, cluster
from tests.estimate.shapes import LLAMA_7B, llama
from toolkit.estimate.evaluate import evaluate
from toolkit.estimate.flop import forward_flop_per_token, model_flop_per_token
from toolkit.estimate.layout import tables
from toolkit.estimate.memory import memory
from toolkit.estimate.parameters import count_parameters
from toolkit.estimate.preference import reference_memory, tiled_logits_bytes
from toolkit.strategy import Strategy
from toolkit.workload import Workload

P = count_parameters(LLAMA_7B).total
PAIRS = Workload(sequence_length=1024, global_batch_size=128, objective="dpo")
SEQUENCES = msgspec.structs.replace(PAIRS, objective="likelihood", global_batch_size=256)
NODE = cluster(8)


def layouts(**degrees: Any) -> tuple[Strategy, Strategy]:
    """One for pairs, and one that handles as many sequences at a time."""
    values = {"dp": 8, "dp_shard": 8, "micro_batch_size": 2, "gradient_accumulation_steps": 8} | degrees
    return Strategy(**values), Strategy(**values | {"micro_batch_size": 2 * values["micro_batch_size"]})


def parameters(workload: Workload, strategy: Strategy) -> float:
    return float(memory(LLAMA_7B, NODE, workload, strategy, CALIBRATION).parameters_bytes)


@pytest.mark.parametrize(
    ("degrees", "bytes_each"),
    [
        ({"framework": "ddp"}, 4.0),  # float32, as the model under autocast
        ({"framework": "deepspeed", "zero_stage": 0}, 2.0),
        ({"framework": "deepspeed", "zero_stage": 1}, 2.0),
        ({"framework": "deepspeed", "zero_stage": 2}, 2.0),
        ({"framework": "deepspeed", "zero_stage": 2, "offload": 1}, 2.0),
    ],
)
def test_a_whole_reference_lies_beside_the_model_below_stage_3(degrees: dict[str, Any], bytes_each: float) -> None:
    pairs, alone = layouts(**degrees)
    assert parameters(PAIRS, pairs) - parameters(SEQUENCES, alone) == pytest.approx(bytes_each * P, rel=1e-12)


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp"])
def test_a_sharded_reference_shrinks_with_the_ranks(framework: str) -> None:
    def reference(dp: int) -> float:
        pairs, _ = layouts(framework=framework, zero_stage=3, dp=dp, dp_shard=dp)
        return float(reference_memory(LLAMA_7B, PAIRS, pairs, tables(LLAMA_7B, PAIRS, framework))[0])

    each = 2.0 if framework == "deepspeed" else 4.0
    assert reference(8) - reference(16) == pytest.approx(each * P / 16, rel=1e-9)
    assert reference(8) == pytest.approx(each * P / 8, rel=1e-9)


def test_a_reference_that_is_one_unit_of_fsdp_is_gathered_whole() -> None:
    """As a dry run counts it: one buffer for all parameters and the parameters beside it, in bf16, while the policy's
    activations are kept; the peak of loss and backward pass comes later, without it."""
    pairs, alone = layouts(framework="fsdp", zero_stage=3)
    more = parameters(PAIRS, pairs) - parameters(SEQUENCES, alone)
    gathered = 2 * 2.0 * P
    assert 4.0 * P / 8 < more < 4.0 * P / 8 + gathered
    single, _ = layouts(framework="fsdp", zero_stage=2)
    kept = reference_memory(LLAMA_7B, PAIRS, single, tables(LLAMA_7B, PAIRS, "fsdp"))[0]
    assert kept == pytest.approx(4.0 * P / 8 + 2.0 * P, rel=1e-9)


def test_offloaded_parameters_take_the_reference_along() -> None:
    pairs, alone = layouts(framework="deepspeed", zero_stage=3, offload=2)
    kept, offloaded = layouts(framework="deepspeed", zero_stage=3)[0], pairs
    difference = parameters(PAIRS, kept) - parameters(PAIRS, offloaded)
    plain = parameters(SEQUENCES, layouts(framework="deepspeed", zero_stage=3)[1]) - parameters(SEQUENCES, alone)
    assert difference - plain == pytest.approx(2.0 * P / 8, rel=1e-9)
    more, less = (
        evaluate(LLAMA_7B, NODE, work, each, CALIBRATION).host_memory.offload_bytes
        for work, each in ((PAIRS, pairs), (SEQUENCES, alone))
    )
    assert more - less == pytest.approx(8 * CALIBRATION["pinned_overhead"] * 2.0 * P / 8, rel=1e-9)


def test_adapters_need_no_reference() -> None:
    pairs, alone = layouts(framework="deepspeed", zero_stage=2)
    work, plain = (msgspec.structs.replace(each, method="lora") for each in (PAIRS, SEQUENCES))
    assert parameters(work, pairs) == parameters(plain, alone)


def test_activations_are_those_of_two_sequences() -> None:
    pairs, alone = layouts(framework="deepspeed", zero_stage=2)
    of_pairs, of_sequences = (
        memory(LLAMA_7B, NODE, work, each, CALIBRATION) for work, each in ((PAIRS, pairs), (SEQUENCES, alone))
    )
    tokens = 4 * 1024
    assert of_pairs.logits_bytes == tiled_logits_bytes(tokens, 32000, 4096, 2.0, 1.0, 2.0)
    assert of_pairs.logits_bytes == 2 * 4096 * 32768 + 6 * (tokens * 4096 + 32000 * 4096)
    assert of_pairs.gradients_bytes == pytest.approx(of_sequences.gradients_bytes, rel=0.2)
    small = memory(
        LLAMA_7B, NODE, PAIRS, layouts(framework="deepspeed", zero_stage=2, micro_batch_size=1)[0], CALIBRATION
    )
    assert of_pairs.activations_bytes == pytest.approx(2.0 * small.activations_bytes, rel=0.02)


def test_the_forward_pass_of_the_reference_is_a_third_more() -> None:
    forward = forward_flop_per_token(LLAMA_7B, PAIRS)
    assert model_flop_per_token(LLAMA_7B, PAIRS) == pytest.approx(4.0 * forward.total)
    assert model_flop_per_token(LLAMA_7B, SEQUENCES) == pytest.approx(3.0 * forward.total)
    pairs, alone = layouts(framework="deepspeed", zero_stage=1)
    more, less = (
        evaluate(LLAMA_7B, NODE, work, each, CALIBRATION).step for work, each in ((PAIRS, pairs), (SEQUENCES, alone))
    )
    # backward passes move more bytes than they multiply: the forward pass is a little less than a third of both
    assert 1.25 < more.compute_seconds / less.compute_seconds < 1.37
    assert more.optimizer_seconds == less.optimizer_seconds
    assert more.tokens_per_second_per_gpu == pytest.approx(256 * 1024 / more.seconds / 8)


@pytest.mark.parametrize(
    ("framework", "stage", "gathers"), [("deepspeed", 3, 1.0), ("fsdp", 3, 1.0), ("deepspeed", 1, 0.0)]
)
def test_sharded_parameters_are_gathered_once_more(framework: str, stage: int, gathers: float) -> None:
    pairs, alone = layouts(framework=framework, zero_stage=stage)
    more, less = (
        evaluate(LLAMA_7B, NODE, work, each, CALIBRATION).communication.dp_bytes
        for work, each in ((PAIRS, pairs), (SEQUENCES, alone))
    )
    assert more - less == pytest.approx(gathers * 8 * 7 / 8 * 2.0 * P, rel=2e-3)  # 8 micro batches, 7/8 over the ring


def test_columns_are_their_scalars() -> None:
    stages, offloads = np.array([0, 1, 2, 3, 3]), np.array([0, 0, 1, 0, 2])
    columns = layouts(
        framework="deepspeed", zero_stage=stages, offload=offloads, micro_batch_size=np.array([1, 2, 2, 4, 1])
    )
    found = evaluate(LLAMA_7B, NODE, PAIRS, columns[0], CALIBRATION)
    for at in range(5):
        one, _ = layouts(
            framework="deepspeed",
            zero_stage=int(stages[at]),
            offload=int(offloads[at]),
            micro_batch_size=[1, 2, 2, 4, 1][at],
        )
        alone = evaluate(LLAMA_7B, NODE, PAIRS, one, CALIBRATION)
        assert found.step.seconds[at] == pytest.approx(alone.step.seconds, rel=1e-12)
        assert found.memory.total_bytes[at] == pytest.approx(alone.memory.total_bytes, rel=1e-12)
        assert found.host_memory.total_bytes[at] == pytest.approx(alone.host_memory.total_bytes, rel=1e-12)


def test_a_wider_vocabulary_costs_no_whole_logits() -> None:
    """Without tiles the logits alone would be tokens x vocabulary x 10 bytes."""
    wide = llama()
    pairs, alone = layouts(framework="deepspeed", zero_stage=3, micro_batch_size=8)
    tiles = memory(wide, NODE, PAIRS, pairs, CALIBRATION).logits_bytes
    assert tiles < 0.3 * memory(wide, NODE, SEQUENCES, alone, CALIBRATION).logits_bytes
