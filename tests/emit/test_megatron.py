"""Megatron's flags and keywords: names of the pinned version, shapes that come out whole, padding, experts."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import plans
from toolkit.emit import megatron
from toolkit.errors import ToolkitError
from toolkit.megatron_shapes import inexpressible, padded_vocabulary
from toolkit.model import ModelSpec
from toolkit.plan import Plan
from toolkit.recipe import planned_steps

PLANS = {name: plan for name, plan in plans.all_plans().items() if plan.strategy.framework == "megatron"}
PUBLISHED = Path(__file__).parents[1] / "published" / "megatron_lm_core_v0.16.1_flags.json"
FLAGS = json.loads(PUBLISHED.read_text())["flags"]
TAKE_SEVERAL = {"--recompute-modules", "--cp-comm-type", "--hierarchical-context-parallel-sizes"}


def grouped(plan: Plan) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = {}
    for word in megatron.arguments(plan):
        if word.startswith("--"):
            assert word not in flags, f"{word} is given twice"
            flags[word] = []
        else:
            flags[list(flags)[-1]].append(word)
    return flags


@pytest.mark.parametrize("name", PLANS)
def test_every_flag_is_one_of_the_parsers_with_as_many_values_as_it_takes(name: str) -> None:
    for flag, values in grouped(PLANS[name]).items():
        kind, *choices = FLAGS[flag]
        assert len(values) == (0 if kind == "switch" else 1) or (flag in TAKE_SEVERAL and values), flag
        if choices:
            assert values[0] in choices[0], f"{flag} {values}"


@pytest.mark.parametrize("name", PLANS)
def test_numbers_are_numbers(name: str) -> None:
    words = {"cosine", "adam", "RMSNorm", "LayerNorm", "rope", "learned_absolute", "torch_dist", "alltoall", "aux_loss"}
    words |= {"full", "selective", "uniform", "block", "core_attn", "gloo", "local", "hybrid"}
    words |= {"p2p", "a2a", "a2a+p2p"}
    for flag, values in grouped(PLANS[name]).items():
        for value in values:
            if value not in words:
                json.loads(value)  # numbers, and the list of layers with experts
            assert not set(value) & set(" \t'\"$`"), f"{flag} {value} would not survive $(cat megatron_args.txt)"


def test_the_text_file_is_the_arguments_one_flag_a_line() -> None:
    for plan in PLANS.values():
        text = megatron.arguments_text(plan)
        assert text.split() == megatron.arguments(plan)
        assert all(line.startswith("--") for line in text.splitlines())


def test_llama_70b_in_flags() -> None:
    flags = grouped(PLANS["dense"])
    expected = {
        "--num-layers": "80",
        "--hidden-size": "8192",
        "--ffn-hidden-size": "28672",
        "--num-attention-heads": "64",
        "--num-query-groups": "8",
        "--kv-channels": "128",
        "--rotary-base": "500000",
        "--rope-scaling-factor": "8.0",
        "--tensor-model-parallel-size": "8",
        "--pipeline-model-parallel-size": "2",
        "--global-batch-size": "8",
        "--lr": "2e-05",
    }
    assert {flag: flags[flag][0] for flag in expected} == expected
    switches = ("--group-query-attention", "--swiglu", "--disable-bias-linear", "--use-rope-scaling", "--bf16")
    assert all(flags[switch] == [] for switch in (*switches, "--untie-embeddings-and-output-weights"))


def test_gpt2_in_flags() -> None:
    flags = grouped(PLANS["gpt2"])
    assert flags["--position-embedding-type"] == ["learned_absolute"]
    assert flags["--max-position-embeddings"] == ["1024"]
    assert flags["--normalization"] == ["LayerNorm"]
    missing = {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--rotary-base"}
    assert not missing & flags.keys()


@pytest.mark.parametrize(
    ("vocab_size", "tp", "padded"),
    [(151669, 1, 151680), (151669, 4, 152064), (128256, 8, 129024), (50257, 1, 50304), (32000, 1, 32000)],
)
def test_padded_vocabulary(vocab_size: int, tp: int, padded: int) -> None:
    # the first two: Megatron-Bridge 1331; GPT-2's 50304 is in every Megatron example
    assert padded_vocabulary(vocab_size, tp) == padded


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_padding_is_least_and_divides(vocab_size: int, tp: int) -> None:
    padded = padded_vocabulary(vocab_size, tp)
    assert padded % (128 * tp) == 0 and vocab_size <= padded < vocab_size + 128 * tp


def test_both_files_pad_the_same_vocabulary() -> None:
    plan = PLANS["tiny-megatron"]
    assert megatron.core_config(plan)["model"]["vocab_size"] == 512  # 259 rows, tp 2
    flags = grouped(plan)
    assert (flags["--vocab-size"], flags["--make-vocab-size-divisible-by"]) == (["259"], ["128"])


def changed(name: str, **strategy: int) -> Plan:
    plan = PLANS[name]
    return msgspec.structs.replace(plan, strategy=msgspec.structs.replace(plan.strategy, **strategy))


def refused(plan: Plan) -> str:
    with pytest.raises(ToolkitError) as caught:
        megatron.arguments(plan)
    return str(caught.value)


def test_layers_per_virtual_stage_come_out_whole() -> None:
    # 80 layers, pp 16, 2 layers per virtual stage: Megatron-LM trained on 64 layers without a word (issue 468)
    assert grouped(PLANS["interleaved"])["--num-layers-per-virtual-pipeline-stage"] == ["8"]
    for virtual in (2, 3, 7):
        plan = changed("interleaved", pp=8, tp=2, dp=1, virtual_pipeline_stages=virtual, gradient_accumulation_steps=16)
        if 80 % (8 * virtual):
            assert f"80 layers do not divide into pp 8 x {virtual} virtual stages" in refused(plan)
        else:
            assert grouped(plan)["--num-layers-per-virtual-pipeline-stage"] == [str(80 // (8 * virtual))]


def test_some_layers_are_recomputed_in_each_virtual_stage() -> None:
    """15 layers of a stage of 5 virtual ones: Megatron counts those of one (transformer_block.py:544)."""
    flags, shape = grouped(PLANS["some-layers"]), megatron.core_config(PLANS["some-layers"])["transformer"]
    assert (flags["--recompute-method"], flags["--recompute-num-layers"]) == (["block"], ["3"])
    assert (shape["recompute_granularity"], shape["recompute_method"], shape["recompute_num_layers"]) == (
        "full",
        "block",
        3,
    )
    every = grouped(PLANS["long"])
    assert (every["--recompute-method"], every["--recompute-num-layers"]) == (["uniform"], ["1"])
    assert "of full recomputation" in refused(changed("some-layers", recompute=1))
    assert "5 virtual stages cannot be written" in refused(changed("some-layers", recompute_layers=7))


def test_ways_of_sharing_keys() -> None:
    for name, method, levels in (("long", "p2p", None), ("heads", "a2a", None), ("levels", "a2a+p2p", ["4", "2"])):
        flags, config = grouped(PLANS[name]), megatron.core_config(PLANS[name])
        assert flags["--cp-comm-type"] == [method] and config["transformer"]["cp_comm_type"] == method
        assert flags.get("--hierarchical-context-parallel-sizes") == levels
        for section in ("transformer", "parallel"):
            written = config[section].get("hierarchical_context_parallel_sizes")
            assert written == (None if levels is None else [int(size) for size in levels])
    # 8 GPUs a node, tp 8: none of the ranks beside it can exchange heads by a fast link
    assert "1 ranks of a node can exchange heads" in refused(changed("levels", tp=8, cp=2))


@pytest.mark.parametrize(
    ("field", "value"), [("schedule", "zb-1p"), ("vocabulary", "spread"), ("tp_overlap", "all"), ("dp_overlap", "none")]
)
def test_what_megatron_core_does_not_run_is_refused(field: str, value: str) -> None:
    plan = PLANS["dense"]
    other = msgspec.structs.replace(plan, strategy=msgspec.structs.replace(plan.strategy, **{field: value}))
    assert f"{field} {value}" in refused(other)


def working(name: str, recompute: int = 0, **changes: object) -> Plan:
    plan = PLANS[name]
    return msgspec.structs.replace(
        plan,
        strategy=msgspec.structs.replace(plan.strategy, recompute=recompute, recompute_layers=0),
        workload=msgspec.structs.replace(plan.workload, **changes),
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "bf16"),
        ("engine", "deepspeed"),
        ("fused_loss", "te"),
        ("expert_dispatch", "deepep"),
        ("expert_overlap", True),
        ("cuda_graphs", "full"),
    ],
)
def test_states_that_megatron_core_does_not_keep_are_refused(field: str, value: object) -> None:
    assert f"{field} {value!r}" in refused(working("dense", **{field: value}))


def test_modules_of_selective_recomputation() -> None:
    chosen = working("dense", 1, recompute_modules="layernorm+mlp")
    assert grouped(chosen)["--recompute-modules"] == ["layernorm", "mlp"]
    assert megatron.core_config(chosen)["transformer"]["recompute_modules"] == ["layernorm", "mlp"]
    assert "does not recompute mlp_act" in refused(working("dense", 1, recompute_modules="mlp_act"))


def test_layers_that_do_not_divide() -> None:
    # Llama 3 405B: 126 layers on 16 stages, the first and last with one layer fewer (arXiv:2407.21783, 3.3.2)
    both = grouped(PLANS["shorter-ends"])
    assert both["--account-for-embedding-in-pipeline-split"] == both["--account-for-loss-in-pipeline-split"] == []
    assert both["--num-layers-per-virtual-pipeline-stage"] == ["2"]  # (126 + 2) / (16 x 4)
    last = grouped(PLANS["shorter-last"])  # 27 + 1 layers on 4 stages
    assert "--account-for-loss-in-pipeline-split" in last and "--account-for-embedding-in-pipeline-split" not in last
    ends = grouped(PLANS["uneven-ends"])  # 61 layers on 4 stages: 15 + 16 + 16 + 14
    assert ends["--decoder-first-pipeline-num-layers"] == ["15"]
    assert ends["--decoder-last-pipeline-num-layers"] == ["14"]
    even = megatron.arguments(PLANS["dense"])
    assert not [flag for flag in even if "account-for" in flag or "decoder-" in flag]


def test_degrees_that_the_flags_cannot_say_are_refused() -> None:
    assert "virtual pipeline stages with pp 1" in refused(
        changed("dense", pp=1, dp=2, virtual_pipeline_stages=2, gradient_accumulation_steps=4)
    )
    assert "zero stage 3" in refused(changed("dense", zero_stage=3))
    assert "offload level 1" in refused(changed("dense", offload=1))
    lora = plans.plan("lora", plans.LLAMA_8B, plans.DGX, framework="megatron", workload={"method": "lora"})
    assert "method 'lora'" in refused(lora)


def test_interleaving_overlaps_its_sends() -> None:
    # pp 2 with batched sends and virtual stages trains on wrong gradients, silently
    shape = megatron.core_config(PLANS["interleaved"])["transformer"]
    assert (shape["overlap_p2p_comm"], shape["batch_p2p_comm"]) == (True, False)
    plain = megatron.core_config(PLANS["dense"])["transformer"]
    assert (plain["overlap_p2p_comm"], plain["batch_p2p_comm"]) == (False, True)
    assert "--no-overlap-p2p-communication" not in megatron.arguments(PLANS["interleaved"])


@pytest.mark.parametrize("name", PLANS)
def test_gathering_overlaps_only_with_the_distributed_optimizer(name: str) -> None:
    config, flags = megatron.core_config(PLANS[name]), grouped(PLANS[name])
    for section in (config["ddp"], config["optimizer"]):
        assert not section["overlap_param_gather"] or section["use_distributed_optimizer"]
    if "--overlap-param-gather" in flags:
        assert {"--use-distributed-optimizer", "--overlap-grad-reduce"} <= flags.keys()


@pytest.mark.parametrize("name", PLANS)
def test_flags_and_keywords_say_the_same(name: str) -> None:
    plan = PLANS[name]
    config, flags = megatron.core_config(plan), grouped(plan)
    shape, s = config["transformer"], plan.strategy
    assert flags["--num-layers"] == [str(shape["num_layers"])]
    assert ("--sequence-parallel" in flags) == shape["sequence_parallel"] == bool(s.sequence_parallel)
    assert ("--use-distributed-optimizer" in flags) == (s.zero_stage == 1)
    for section in ("parallel", "transformer"):
        for flag in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"):
            assert flags[f"--{flag}"] == [str(config[section][flag.replace("-", "_")])]
    extra = sum(flag.startswith("--account-for") for flag in flags)
    if s.virtual_pipeline_stages > 1:
        assert shape["virtual_pipeline_model_parallel_size"] == s.virtual_pipeline_stages
        each = int(flags["--num-layers-per-virtual-pipeline-stage"][0])
        assert each * s.pp * s.virtual_pipeline_stages == shape["num_layers"] + extra
    training = config["training"]
    assert training["micro_batch_size"] * s.gradient_accumulation_steps * s.dp == training["global_batch_size"]


def test_experts() -> None:
    flags, shape = grouped(PLANS["experts"]), megatron.core_config(PLANS["experts"])["transformer"]
    assert flags["--num-experts"] == ["128"] and flags["--moe-router-topk"] == ["8"]
    assert flags["--expert-model-parallel-size"] == ["4"]
    # etp is always given: a missing value means tp, and tp 4 x ep 4 would not fit the 16 GPUs with pp
    assert flags["--expert-tensor-parallel-size"] == ["1"] and shape["expert_tensor_parallel_size"] == 1
    assert "--qk-layernorm" in flags and "--moe-layer-freq" not in flags
    latent = grouped(PLANS["latent"])
    assert json.loads(latent["--moe-layer-freq"][0]) == [0] + [1] * 26
    assert latent["--moe-shared-expert-intermediate-size"] == ["2816"]
    assert "--group-query-attention" not in latent  # not with latent attention: Megatron-LM arguments.py


def test_one_expert_per_token_is_weighed_before_the_choice() -> None:
    model = msgspec.structs.replace(plans.QWEN_30B_A3B, num_experts_per_tok=1)
    shape = {"sequence_parallel": 1, "zero_stage": 1, "framework": "megatron"}
    assert "--moe-router-pre-softmax" in megatron.arguments(plans.plan("one", model, plans.DGX, tp=4, ep=4, **shape))


def test_a_window_longer_than_the_sequence_is_left_out() -> None:
    model = msgspec.structs.replace(plans.LLAMA_8B, sliding_window=4096)
    short = plans.plan("mistral", model, plans.DGX, framework="megatron", tp=2)
    long = plans.plan("mistral", model, plans.DGX, framework="megatron", tp=2, workload={"sequence_length": 8192})
    assert "--window-size" not in megatron.arguments(short)
    assert grouped(long)["--window-size"] == ["4095,0"]  # keys before the query's own


def test_steps_follow_from_the_contract() -> None:
    plan = PLANS["dense"]
    by_tokens = msgspec.structs.replace(plan.contract, total_steps=0, total_tokens=1.0e9)
    assert planned_steps(plan.contract) == 100
    assert planned_steps(by_tokens) == -(-(10**9) // (8 * 4096))
    by_epochs = msgspec.structs.replace(plan, contract=msgspec.structs.replace(plan.contract, total_steps=0))
    assert planned_steps(by_epochs.contract) == 0 and "--train-iters" not in megatron.arguments(by_epochs)


def test_shares_of_the_steps_are_steps_where_there_are_any() -> None:
    def flags(**changes: object) -> dict[str, list[str]]:
        return grouped(msgspec.structs.replace(plan, contract=msgspec.structs.replace(plan.contract, **changes)))

    plan = PLANS["dense"]
    shared = {"warmup_steps": 0, "warmup_fraction": 0.1, "schedule": "wsd", "decay_fraction": 0.2}
    said = flags(**shared, total_steps=1000)
    assert said["--lr-warmup-iters"] == ["100"] and "--lr-warmup-fraction" not in said
    assert (said["--lr-wsd-decay-iters"], said["--lr-decay-style"]) == (["200"], ["WSD"])
    by_epochs = flags(warmup_steps=0, warmup_fraction=0.1, total_steps=0)
    assert (by_epochs["--lr-warmup-fraction"], by_epochs["--lr-warmup-iters"]) == (["0.1"], ["0"])
    with pytest.raises(ToolkitError, match="the decay is a share of all steps"):
        flags(**shared, total_steps=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mixers": "M" * 32}, "token mixers other than attention"),
        ({"norms_per_layer": 4}, "4 norms in a layer"),
        ({"qk_norm": "full"}, "query-key norm over the whole width"),
        ({"attention_output_bias": True}, "biases on some projections only"),
        ({"hidden_act": "relu2", "gated_mlp": False}, "MLP with relu2"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "gated MLP with gelu_pytorch_tanh"),
        ({"embedding_norm": True}, "a norm after the embedding"),
        ({"parallel_residual": True}, "parallel residuals"),  # GPT-NeoX and Pythia, Falcon
        ({"other_parameters": {"vision": 10}}, "parts beside the language stack"),
    ],
)
def test_a_model_that_the_flags_cannot_describe_is_refused(changes: dict, words: str) -> None:
    model: ModelSpec = msgspec.structs.replace(plans.LLAMA_8B, **changes)
    assert any(words in found for found in inexpressible(model))
    assert words in refused(plans.plan("odd", model, plans.DGX, framework="megatron", tp=2))


def test_what_can_be_described() -> None:
    for model in (plans.LLAMA_8B, plans.QWEN_30B_A3B, plans.DEEPSEEK_V2_LITE, plans.GPT2):
        assert inexpressible(model) == ()


MEGATRON_READS = """
import json, sys
import torch, torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
import inspect
from recipes.pretrain.machine import Machine, transformer_settings
BARE_GPU = Machine(name="test", device="cuda", backend="nccl", transformer_engine=False, apex=False)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
answers = {}
def values(section):
    made = {k: DTYPES[v] if k.endswith("_dtype") and isinstance(v, str) else v for k, v in section.items()}
    if "activation_func" in made:
        made["activation_func"] = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": F.gelu}[made["activation_func"]]
    return made
for name, config in json.load(sys.stdin).items():
    try:
        latent = config["transformer"].get("multi_latent_attention")
        settings, _ = transformer_settings(BARE_GPU, config["transformer"])
        shape = (MLATransformerConfig if latent else TransformerConfig)(**values(settings))
        DistributedDataParallelConfig(**config["ddp"])
        optimizer = OptimizerConfig(**values(config["optimizer"]))
        inspect.signature(GPTModel.__init__).bind_partial(None, **config["model"])
        inspect.signature(parallel_state.initialize_model_parallel).bind(**config["parallel"])
        answers[name] = [shape.num_query_groups, shape.ffn_hidden_size, shape.recompute_modules]
        answers[name].append(str(optimizer.params_dtype))
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
print("ANSWER" + json.dumps(answers))
"""


@pytest.mark.slow
def test_megatron_cores_own_classes_take_every_keyword() -> None:
    configs = {name: megatron.core_config(plan) for name, plan in PLANS.items()}
    wrong = json.loads(json.dumps(configs["dense"]))
    wrong["transformer"]["num_attention_heads"] = 52  # tp 8 does not divide it: vllm 414
    unknown = json.loads(json.dumps(configs["dense"]))
    unknown["ddp"]["overlap_grad_reduction"] = True
    done = subprocess.run(
        [sys.executable, "-c", MEGATRON_READS],
        input=json.dumps(configs | {"wrong": wrong, "unknown": unknown}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.split("ANSWER")[1])
    assert "must be a multiple of" in answers.pop("wrong") and "TypeError" in answers.pop("unknown")
    for name, plan in PLANS.items():
        groups = plan.model.num_attention_heads if plan.model.is_mla else plan.model.num_key_value_heads
        dtype = "torch.float16" if plan.workload.precision == "fp16" else "torch.bfloat16"
        assert answers[name] == [groups, plan.model.intermediate_size, ["core_attn"], dtype], name


def test_core_config_is_plain_json_and_the_programs_own_decoder_takes_it(tmp_path: Path) -> None:
    from recipes.pretrain import config

    for name, plan in PLANS.items():
        from toolkit import plan as module

        (tmp_path / "plan.json").write_text(module.dump(plan))
        (tmp_path / "core.json").write_text(json.dumps(megatron.core_config(plan)))
        loaded, core, _ = config.load(tmp_path / "plan.json", tmp_path / "core.json")
        assert loaded == plan and core.training.global_batch_size == plan.contract.global_batch_size, name


def test_the_program_accepts_what_is_emitted() -> None:
    from recipes.pretrain import config, validity

    for name in (
        "tiny-megatron",
        "dense",
        "interleaved",
        "long",
        "gpt2",
        "experts",
        "shorter-ends",
        "uneven-ends",
        "some-layers",
        "heads",
        "levels",
    ):
        plan = PLANS[name]
        core = msgspec.convert(json.loads(json.dumps(megatron.core_config(plan))), config.CoreConfig)
        validity.check(plan, core, plan.cluster.num_gpus)


@pytest.mark.parametrize("name", ["mpt-7b", "dbrx"])
def test_a_layer_norm_without_a_bias_is_not_taken_for_an_rms_norm(name: str) -> None:
    """megatron-core's LayerNorm always has a bias, and its RMSNorm does not subtract the mean."""
    from toolkit.megatron_shapes import inexpressible
    from toolkit.registry.models import load_model

    assert "a LayerNorm without a bias" in inexpressible(load_model(name))
