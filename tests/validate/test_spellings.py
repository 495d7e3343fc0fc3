"""One word for each way to write it; raw columns where the normalised one is blank; no guess at anything else."""

from __future__ import annotations

import pytest

from tests.validate.runs import job, row
from tests.validate.test_published import PUBLISHED
from toolkit.strategy import OFFLOAD, RECOMPUTE
from toolkit.validate.rows import read
from toolkit.validate.spellings import spelled

WORDS = {
    "precision_norm": {
        "bf16": "BF16 bfloat16 bf16-mixed amp_bf16 bf16-true",
        "fp16": "float16 FP16 16-mixed half",
        "fp32": "tf32 FP32 float32 32-true",
        "fp8": "FP8 fp8_cs fp8-blockwise float8 fp8_e4m3",
        "mxfp8": "MXFP8 FP8-MX",
        "nvfp4": "NVFP4",
        "int4-base": "int4 NF4 4bit",
    },
    "zero_norm": {
        "hsdp": "HSDP hybrid_shard",
        "3": "3 zero3 ZeRO-3 fsdp FSDP2 3.0 stage3 z3 full_shard ZERO_3",
        "2": "2 zero-2 shard_grad_op 2.0",
        "1": "1 ZeRO1 distributed_optimizer distopt",
        "0": "0 none None ddp DDP False no_shard 0.0",
    },
    "recompute_norm": {
        "full": "Full block uniform True FULL 1 yes activation_checkpointing",
        "none": "None False 0 no off",
        "selective": "Selective selective-op SAC core_attn",
    },
    "mem_basis": {"allocated": "Allocated max_memory_allocated", "reserved": "RESERVED", "device": "nvidia-smi"},
    "task": {"lora": "LoRA Lora", "qlora": "QLoRA QLORA", "sft": "SFT finetune", "pretrain": "Pretrain pre-training"},
    "outcome": {"OOM": "oom OOM out-of-memory", "ok": "OK Ok success"},
    "sp": {"1": "True 1 yes 1.0", "0": "False 0 no"},
    "offload": {
        "none": "no False 0 none None",
        "optimizer": "cpu CPU optimizer zero-offload",
        "params+optim": "params+optim parameters",
        "activations": "act-cpu activations",
    },
}
CASES = [
    (column, text, word) for column, kinds in WORDS.items() for word, texts in kinds.items() for text in texts.split()
]


@pytest.mark.parametrize(("column", "text", "word"), CASES)
def test_words(column: str, text: str, word: str) -> None:
    found, faults = spelled({column: text})
    assert (found[column], faults) == (word, {})
    assert spelled(found) == (found, {})  # what was read once stays as it is


@pytest.mark.parametrize(
    ("norm", "raw", "text", "word"),
    [
        ("precision_norm", "precision", "bf16 (fp32 grad accum, BF16_Optimizer)", "bf16"),
        ("precision_norm", "precision", "bf16+fp8(hybrid,blockwise)", "fp8"),
        ("recompute_norm", "recompute", "selective:mlp-act+norm", "selective"),
        ("recompute_norm", "recompute", "full:uniform/1", "full"),
        ("zero_norm", "zero_stage", "fsdp(shard=128)", "3"),
        ("zero_norm", "zero_stage", "ddp+distopt(z1)", "1"),
        ("zero_norm", "zero_stage", "fsdp-shard-grad-op(z2)", "2"),
        ("zero_norm", "zero_stage", "megatron-fsdp(optim_grads_params)", "3"),
        ("mem_basis", "mem_kind", "torch max_memory_allocated", "allocated"),
        ("mem_basis", "mem_kind", "torchtitan log value (max reserved GiB); steady allocated 3", "reserved"),
    ],
)
def test_raw_columns_serve_where_the_normalised_one_is_blank_or_absent(
    norm: str, raw: str, text: str, word: str
) -> None:
    assert spelled({raw: text})[0][norm] == spelled({norm: "n/a", raw: text})[0][norm] == word
    assert spelled({raw: text})[0][raw] == text


def test_a_stated_word_wins_over_the_raw_column_and_unspecified_memory_stays_so() -> None:
    assert row(precision_norm="fp16", precision="bf16").text("precision_norm") == "fp16"
    assert row(mem_basis="unspecified", mem_kind="allocated").text("mem_basis") == "unspecified"
    assert row(mem_basis="something").text("mem_basis") == row(outcome="measured").text("outcome") == ""
    assert row(precision_norm="none").text("precision_norm") == ""


def test_a_stage_in_the_name_of_the_framework_counts_where_no_column_states_one() -> None:
    assert spelled({"framework": "accelerate + DeepSpeed ZeRO-3 offload"})[0]["zero_norm"] == "3"
    assert spelled({"framework": "DeepSpeed ZeRO-3", "zero_stage": "2"})[0]["zero_norm"] == "2"
    assert "zero_norm" not in spelled({"framework": "Megatron-LM (zero-bubble fork)"})[0]


def test_what_nobody_understands_is_named_with_its_column() -> None:
    assert spelled({"zero_stage": "zero"})[1] == {"zero_norm": "not modelled: zero_stage 'zero'"}
    assert spelled({"offload": "nvme"})[1] == {"offload": "not modelled: offload 'nvme'"}


def test_the_shipped_rows_were_normalised_the_same_way() -> None:
    """Every raw text of the rows beside its normalised word, but for shards of a few ranks (fsdp(shard=128))."""
    for column, raw in (("precision_norm", "precision"), ("recompute_norm", "recompute"), ("zero_norm", "zero_stage")):
        for each in read(PUBLISHED.read_bytes(), "runs.csv"):
            if each.text(column) and each.text(raw) and each.text(column) != "hsdp":
                assert spelled({raw: each.text(raw)})[0][column] == each.text(column), each.name


def test_jobs_of_words() -> None:
    made = job(precision_norm="", precision="FP8", recompute_norm="Full", zero_norm="ZeRO-1", task="LoRA", sp="True")
    assert (made.workload.precision, made.workload.method) == ("fp8", "lora")
    assert (RECOMPUTE[made.strategy.recompute], made.strategy.zero_stage) == ("full", 1)
    assert made.strategy.sequence_parallel == 1 and made.assumed == ()
    assert OFFLOAD[job(offload="cpu").strategy.offload] == "optimizer"
    assert job(recompute_norm="", recompute="block/8").strategy.recompute_layers == 8
    assert job(recompute_norm="block").strategy.recompute_layers == 0


def test_an_optimizer_that_is_not_ours_is_named() -> None:
    made = job(optimizer="Lion")
    assert made.assumed == ("step of adamw in place of Lion",)
    assert made.unscored == {"peak_memory": "not modelled: optimizer 'Lion'"}
    assert job(optimizer="something").unscored == {} and "something" in job(optimizer="something").assumed[0]
