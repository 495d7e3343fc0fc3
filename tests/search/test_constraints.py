"""Each rule of the frameworks: what it refuses, what it lets pass, and what it says."""

import math
import re

import msgspec
import numpy
import pytest

from tests.requests import request_for
from tests.search.whole_space import blocks, mask
from toolkit.search.constraints import violated
from toolkit.search.rules import CONSTRAINTS
from toolkit.strategy import FRAMEWORKS, Strategy


def broken(request, **fields: object) -> dict[str, str]:
    strategy = Strategy(**{"framework": "megatron", "dp": 1, "dp_shard": 1, **fields})
    return {constraint.name: str(problem) for constraint, problem in violated(request, strategy)}


@pytest.mark.parametrize("tp", [8, 3])
def test_52_heads_refuse_tp_8_and_3_and_name_the_valid_degrees(tp: int) -> None:
    """LLaMA-30B has 52 heads (DeepSpeed issue 3634)."""
    request = request_for(model="llama-30b", gpus=8)
    said = broken(request, tp=tp, dp=8 // tp)
    assert "52 attention heads" in said["tensor_heads"]
    assert "1, 2, 4, 13, 26, 52" in said["tensor_heads"]


def test_the_search_never_proposes_tp_8_for_52_heads() -> None:
    request = request_for(model="llama-30b", gpus=64, framework="megatron")
    for block in blocks(request):
        assert set(block.tp[mask(request, block, {})]) <= {1, 2, 4}


def test_80_layers_on_16_stages_allow_1_and_5_layers_per_chunk_only() -> None:
    """Megatron-LM issue 468: 2 layers per chunk silently built 64 layers."""
    request = request_for(model="llama-2-70b", gpus=16, global_batch=64)
    legal = []
    for layers_per_chunk in (1, 2, 5):
        chunks = 80 / 16 / layers_per_chunk
        if chunks != int(chunks):
            continue  # not a whole number of virtual stages: cannot even be written down
        said = broken(request, pp=16, virtual_pipeline_stages=int(chunks), gradient_accumulation_steps=64)
        if "virtual_stages" not in said:
            legal.append(layers_per_chunk)
    assert legal == [1, 5]


@pytest.mark.parametrize("length,fine", [(8192, True), (8190, False), (32768, True)])
def test_sequence_lengths_with_cp4_tp8(length: int, fine: bool) -> None:
    """The least multiple is cp x lcm(2, tp) = 32 (NeMo-RL PR 3563)."""
    request = request_for(model="llama-2-70b", gpus=32, sequence_length=length, global_batch=1)
    said = broken(request, tp=8, cp=4, sequence_parallel=1, zero_stage=1)
    assert (not {"context_length", "sequence_length"} & set(said)) == fine
    if not fine:
        assert "multiple of 32" in said["sequence_length"]


def test_expert_grid_of_the_stated_degrees_is_valid() -> None:
    """4 GPUs, tp1 pp2 ep2 etp1: 1 x 2 x 2 = 4 divides 4; with ep 4 it does not."""
    request = request_for(model="gpt-oss-20b", gpus=4, global_batch=512)
    good = broken(request, pp=2, ep=2, etp=1, dp=2, dp_shard=2, gradient_accumulation_steps=256)
    assert "expert_grid" not in good
    bad = broken(request, pp=2, ep=4, etp=1, dp=2, dp_shard=2, gradient_accumulation_steps=256)
    assert "= 8 does not divide 4 GPUs" in bad["expert_grid"]


def test_zero_without_data_parallelism_is_called_pointless() -> None:
    """DeepSpeed issue 237: ZeRO-2 with model parallel 8 on 8 GPUs divides nothing."""
    request = request_for(model="llama-2-13b", gpus=8)
    assert "no effect with data-parallel size 1" in broken(request, tp=8, zero_stage=1)["zero_needs_data_parallel"]


def test_offloading_parameters_needs_stage_3() -> None:
    request = request_for(gpus=8)
    said = broken(request, framework="deepspeed", zero_stage=2, offload=2, dp=8, dp_shard=8)
    assert "stage 3" in said["offload"]


def test_hpz_on_one_node_is_refused() -> None:
    request = request_for(gpus=8)
    assert "hpz" in broken(request, framework="deepspeed", zero_stage=3, hpz=8, dp=8, dp_shard=8)


def test_the_global_batch_is_kept_exactly() -> None:
    request = request_for(gpus=8, global_batch=100)
    said = broken(request, framework="ddp", dp=8, dp_shard=8, micro_batch_size=1, gradient_accumulation_steps=12)
    assert "= 96 is not the global batch of 100" in said["global_batch"]


@pytest.mark.parametrize("model", ["llama-2-7b", "mixtral-8x7b"])
def test_mask_and_sentences_agree(model: str) -> None:
    """The same predicate gives the search's mask and a plan's validation."""
    request = request_for(model=model, gpus=16, global_batch=64)
    generator = numpy.random.default_rng(0)
    for block in blocks(request):
        alive = mask(request, block, {})
        for row in generator.choice(len(alive), size=min(200, len(alive)), replace=False):
            assert bool(alive[row]) == (not violated(request, block.take(int(row))))


def test_every_constraint_of_megatron_says_where_it_comes_from() -> None:
    unsourced = {c.name for c in CONSTRAINTS if "megatron" in c.frameworks and not c.source and not c.advice}
    # what our own programs cannot do has no outside source
    assert unsourced <= {"architecture", "method", "gpus", "zero_stages"}


@pytest.mark.parametrize(
    ("pin", "rule"),
    [
        ({"virtual_pipeline_stages": 4}, "virtual_stages"),
        ({"sequence_parallel": 1}, "sequence_parallel"),
        ({"dp_shard": 4}, "shard_group"),
        ({"hpz": 4}, "hpz"),
        ({"etp": 4}, "whole_experts"),
    ],
)
def test_a_degree_that_a_framework_does_not_have_is_refused_and_not_ignored(pin: dict[str, int], rule: str) -> None:
    request = request_for(gpus=8, global_batch=64)
    degrees = {"dp": 8, "dp_shard": 8, "gradient_accumulation_steps": 8, "zero_stage": 0}
    assert rule in broken(request, framework="ddp", **(degrees | pin))
    assert rule not in broken(request, framework="ddp", **degrees)


def test_pins_that_only_another_framework_has_leave_none_of_the_others() -> None:
    for pin in ({"hpz": 4}, {"dp_shard": 4}, {"virtual_pipeline_stages": 4}):
        request = msgspec.structs.replace(request_for(gpus=8, global_batch=64), framework="ddp", pins=pin)
        for block in blocks(request):
            assert not mask(request, block, {}).any(), pin


def test_a_product_that_wraps_around_to_the_number_of_gpus_is_not_that_number() -> None:
    """140440 x 386207 x 174103 x 736451 = 377 x 2^64 + 8, which is 8 in the 64 bits of a column."""
    degrees = {"tp": 140440, "pp": 386207, "cp": 174103, "dp": 736451}
    assert math.prod(degrees.values()) == 377 * 2**64 + 8
    (rule,) = (constraint for constraint in CONSTRAINTS if constraint.name == "gpus")
    request = request_for(gpus=8)
    for values in (degrees, {name: numpy.array([value]) for name, value in degrees.items()}):
        assert not rule.holds(request.model, request.cluster, request.workload, Strategy(**values))


def test_context_parallelism_cuts_sequences_into_twice_as_many_parts() -> None:
    """Each rank holds two parts, an early and a late one: 4100 = 4 x 1025 is not a multiple of 2 x 4."""
    request = request_for(gpus=8, sequence_length=4100)
    assert "pad sequences to a multiple of 8" in broken(request, cp=4, dp=2, dp_shard=2)["context_length"]
    assert "context_length" not in broken(request, cp=2, dp=4, dp_shard=4)


def test_a_secondary_copy_stays_inside_a_node() -> None:
    request = request_for(gpus=16)
    for hpz, refused in ((8, False), (16, True)):
        said = broken(request, framework="deepspeed", zero_stage=3, hpz=hpz, dp=16, dp_shard=16)
        assert ("hpz" in said) == refused


def test_exchanging_heads_needs_heads_to_exchange() -> None:
    """Llama-2-70B has 64 query and 8 key-value heads: with tp 4 a rank has 2 of these, which cp 4 does not divide."""
    request = request_for(model="llama-2-70b", gpus=32, global_batch=2)
    degrees = {"tp": 4, "sequence_parallel": 1, "zero_stage": 1, "cp_method": "a2a"}
    assert "8 key-value heads" in broken(request, cp=4, dp=2, dp_shard=2, **degrees)["context_heads"]
    assert not broken(request, cp=2, dp=4, dp_shard=4, **degrees, gradient_accumulation_steps=1).get("context_heads")


def test_two_levels_are_two() -> None:
    """8 GPUs of a node, tp 2: up to 4 ranks exchange heads, and the ring has what is left."""
    request = request_for(gpus=32, global_batch=4)
    degrees = {"tp": 2, "cp_method": "a2a+p2p"}
    assert "context_levels" in broken(request, cp=4, dp=4, dp_shard=4, **degrees)  # one level holds them all
    assert "context_levels" not in broken(request, cp=8, dp=2, dp_shard=2, **degrees)
    alone = {"tp": 8, "cp_method": "a2a+p2p"}
    assert "1 ranks of a node" in broken(request, cp=4, dp=1, dp_shard=1, **alone)["context_levels"]


def test_what_transformer_engine_refuses_is_refused() -> None:
    latent = request_for(model="deepseek-v3", gpus=64, global_batch=8)
    for method, refused in (("p2p", False), ("all_gather", True), ("a2a", True), ("a2a+p2p", False)):
        assert ("context_latent" in broken(latent, cp=8, dp=8, dp_shard=8, cp_method=method)) == refused
    window = request_for(model="mistral-7b-v0.1", gpus=8, sequence_length=8192, global_batch=8)
    for method, refused in (("p2p", True), ("all_gather", False), ("a2a", False), ("a2a+p2p", True)):
        assert ("context_window" in broken(window, cp=4, dp=2, dp_shard=2, cp_method=method)) == refused
    short = request_for(model="mistral-7b-v0.1", gpus=8, sequence_length=4096, global_batch=8)
    assert "context_window" not in broken(short, cp=4, dp=2, dp_shard=2)  # the window is the sequence


def test_a_method_without_context_parallelism_is_refused() -> None:
    request = request_for(gpus=8)
    assert "context_method" in broken(request, dp=8, dp_shard=8, cp_method="a2a")
    assert "context_method" in broken(request, framework="ddp", dp=8, dp_shard=8, cp_method="a2a")


@pytest.mark.parametrize(
    ("fields", "fine"),
    [
        ({"recompute": 2, "recompute_layers": 15}, True),
        ({"recompute": 2, "recompute_layers": 16}, False),  # all of them: leave it out
        ({"recompute": 1, "recompute_layers": 4}, False),
        ({"recompute": 0, "recompute_layers": 4}, False),
        ({"recompute": 2, "recompute_layers": 6, "virtual_pipeline_stages": 2}, True),
        ({"recompute": 2, "recompute_layers": 7, "virtual_pipeline_stages": 2}, False),
        ({"recompute": 2, "recompute_layers": 0}, True),
    ],
)
def test_some_layers_of_a_stage_are_recomputed(fields: dict[str, int], fine: bool) -> None:
    request = request_for(gpus=8, global_batch=8)  # 32 layers, 2 stages
    said = broken(request, pp=2, dp=4, dp_shard=4, gradient_accumulation_steps=2, **fields)
    assert ("recompute_layers" not in said) == fine
    if not fine:
        assert "below the 16 layers of a stage" in said["recompute_layers"]


def test_hugging_face_models_recompute_every_layer() -> None:
    request = request_for(gpus=8)
    said = broken(request, framework="deepspeed", dp=8, dp_shard=8, zero_stage=2, recompute=2, recompute_layers=4)
    assert "every layer or none" in said["recompute_some"]


def test_interleaving_counts_embedding_and_head_as_layers() -> None:
    """Llama 3.1 405B: 126 layers and both ends are 128, 8 stages of 8 chunks of 2 (arXiv 2407.21783, section 3.3.2)."""
    request = request_for(model="llama-3.1-405b", gpus=512, global_batch=64)
    degrees = {"tp": 8, "pp": 8, "dp": 8, "dp_shard": 8, "sequence_parallel": 1}
    good = broken(request, virtual_pipeline_stages=8, gradient_accumulation_steps=8, **degrees)
    assert "virtual_stages" not in good
    bad = broken(request, virtual_pipeline_stages=5, gradient_accumulation_steps=8, **degrees)
    assert "valid --vpp with pp 8: 1, 2, 4, 8" in bad["virtual_stages"]


def test_experts_with_biases_are_not_cut() -> None:
    request = request_for(model="mixtral-8x7b", gpus=8)
    biased = request.replace(model=msgspec.structs.replace(request.model, expert_bias=True))
    assert "expert_bias" in broken(biased, tp=2, etp=2, dp=4, dp_shard=4)
    assert "expert_bias" not in broken(biased, tp=2, etp=1, dp=4, dp_shard=4)


def test_selective_recomputation_of_flash_attention_is_called_useless() -> None:
    request = request_for(gpus=8)
    assert "saves no memory" in broken(request, dp=8, dp_shard=8, recompute=1)["recompute_flash"]
    for changes in ({"attention": "eager"}, {"recompute_modules": "core_attn+layernorm"}):
        other = request.replace(workload=msgspec.structs.replace(request.workload, **changes))
        assert "recompute_flash" not in broken(other, dp=8, dp_shard=8, recompute=1)


def test_sequences_are_not_cut_into_pieces_that_nobody_measured() -> None:
    request = request_for(gpus=16, sequence_length=4096)
    assert "fewer than 512 of the 4096 tokens" in broken(request, cp=16)["context_short"]
    assert "context_short" not in broken(request, cp=8, dp=2, dp_shard=2)


def test_experts_are_cut_no_further_than_the_rest_of_a_layer() -> None:
    request = request_for(model="mixtral-8x7b", gpus=8)
    assert "expert_tensor_inside_tensor" in broken(request, tp=2, etp=4, dp=4, dp_shard=4, sequence_parallel=1)
    assert "expert_tensor_inside_tensor" not in broken(request, tp=4, etp=2, dp=2, dp_shard=2, sequence_parallel=1)


@pytest.mark.parametrize("framework", ["ddp", "fsdp", "deepspeed"])
@pytest.mark.parametrize("degrees", [{"pp": 2}, {"cp": 2}, {"pp": 2, "cp": 2}])
def test_a_framework_without_a_degree_is_not_told_off_for_the_product(framework: str, degrees: dict[str, int]) -> None:
    said = broken(request_for(gpus=8), framework=framework, dp=8, dp_shard=8, **degrees)
    assert "data_parallel_only" in said and "gpus" not in said


def test_a_wrong_product_alone_is_told() -> None:
    assert "gpus" in broken(request_for(gpus=8), framework="fsdp", dp=4, dp_shard=4, zero_stage=3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("offload", [1, 2])
def test_following_the_remedy_of_offload_makes_it_legal(framework: str, stage: int, offload: int) -> None:
    request = request_for(gpus=8, global_batch=8)
    degrees = {"dp": 8, "dp_shard": 8, "offload": offload}
    said = broken(request, framework=framework, zero_stage=stage, **degrees).get("offload", "")
    remedied = "deepspeed" if "--framework deepspeed" in said else framework
    wanted = re.search(r"--zero ([0-9])", said)
    stages = (stage,) if wanted is None else (1, 2, 3) if "--zero 1 or more" in said else (int(wanted[1]),)
    for each in stages:
        assert "offload" not in broken(request, framework=remedied, zero_stage=each, **degrees), said
