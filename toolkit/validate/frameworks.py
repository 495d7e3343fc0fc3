"""What the name of a framework means: which engine trains, what it shards, and what its recipes do unasked."""

from __future__ import annotations

import re

MEGATRON = r"megatron|mcore|nemo(?!.*automodel)|nanotron|intern(evo|lm)|hai-llm|neox"
JAX = r"maxtext|pax|\bjax\b|levanter|easylm|\bt5x\b"
_TORCH = (
    r"fsdp|torchtitan|torchtune|automodel|composer|foundry|litgpt|fabric|llama-factory|axolotl|unsloth|xtuner|ms-swift"
    r"|hugging ?face|transformers\b|\btrainer|\baccelerate\b|lightning|\bolmo\b|\btrl\b|\bpeft\b"
)
# frameworks whose published recipes shard the optimizer and use sequence parallelism without saying so
_RECIPE_DEFAULTS = r"nemo|megatron-bridge"
COMPOSER = r"composer|foundry"


def is_data_parallel(words: str) -> bool:
    """Whether the framework's name says that it has no tensor or pipeline parallelism unless that is stated."""
    return re.search(rf"{_TORCH}|{JAX}|deepspeed|ddp", words.casefold()) is not None


def framework_of(words: str, zero: str, model_parallel: bool, gpus: int) -> str:
    """ddp, deepspeed, fsdp or megatron, from the framework's name and what it is asked to do.

    DeepSpeed's own engine runs ZeRO; under the name Megatron-DeepSpeed it does for stages 2 and 3, while below that
    Megatron's layers and pipeline do the work. ZeRO-3 in any other framework is full sharding by layer, as FSDP does
    it. A data-parallel framework that shards nothing is ddp. A name that says nothing is judged by its degrees.
    """
    name = words.casefold()
    sharded = zero in ("3", "hsdp")
    if "deepspeed" in name and not ("megatron" in name and zero not in ("2", "3")):
        return "deepspeed"
    if sharded:
        return "fsdp"
    if re.search(MEGATRON, name):
        return "megatron"
    if re.search("colossal", name):
        return "deepspeed" if zero in ("1", "2") else "megatron"
    if re.search(_TORCH, name) or re.search(JAX, name):
        if model_parallel:
            return "megatron"
        named = re.search("fsdp|torchtitan|automodel", name) is not None
        return "fsdp" if gpus > 1 and (named or zero == "2") else "ddp"
    if model_parallel:
        return "megatron"
    return "deepspeed" if zero in ("1", "2") else "ddp"


def zero_of(norm: str, text: str) -> str:
    """The ZeRO stage: 3 where full sharding stands beside a sharded optimizer (``zero1 + fsdp`` of InternEvo)."""
    return "3" if norm in ("0", "1") and re.search(r"\+ ?fsdp", text.casefold()) else norm


def shard_of(text: str, gpus_per_node: int) -> int:
    """Ranks that share one copy: ``shard=8``, ``fsdp128 x dp2``, ``fsdp in node``; 0 where it is not stated."""
    stated = re.search(r"shard=(\d{1,7})\b", text) or re.search(r"fsdp(\d{1,7}) x", text)
    if stated:
        return int(stated[1])
    return gpus_per_node if "in node" in text else 0


def engine_of(words: str, framework: str) -> str:
    """Deepspeed where DeepSpeed's engine runs Megatron's layers and pipeline; nanotron has one of its own."""
    name = words.casefold()
    if framework == "megatron" and "nanotron" in name:
        return "nanotron"
    if framework in ("megatron", "fsdp") and re.search("intern(evo|lm)", name):
        return "internevo"
    both = "megatron" in name and "deepspeed" in name
    return "deepspeed" if framework == "megatron" and (both or "neox" in name) else "default"


def has_recipe_defaults(words: str) -> bool:
    """Whether the framework's recipes turn on the distributed optimizer, sequence parallelism and etp 1 by themselves.

    Source: ``llm/recipes`` of NeMo and the presets of Megatron-Bridge; Megatron-LM's own arguments default to off.
    """
    return re.search(_RECIPE_DEFAULTS, words.casefold()) is not None
