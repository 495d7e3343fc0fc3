"""Whose kernels a run had: layers, attention, loss and the sums of gradients."""

from __future__ import annotations

import re
from typing import Literal

from toolkit.validate.frameworks import COMPOSER, JAX, MEGATRON, has_recipe_defaults

_OWN_KERNELS = r"automodel|unsloth"


def kernels_of(words: str, framework: str, compiled: bool) -> str:
    """Whose kernels compute layers and loss, where the framework that shards (``framework``) does not bring them.

    Composer and llm-foundry default to flash-attn's fused cross entropy (``loss_fn: fused_crossentropy``); NeMo
    AutoModel takes Transformer Engine, Unsloth is kernels in Triton; XLA fuses whatever JAX runs, and a run that is
    compiled compiles its loss too (``build_cross_entropy_loss`` of torchtitan). Megatron-FSDP, and Megatron-DeepSpeed
    under ZeRO-2 and 3, shard Megatron's layers.
    """
    name = words.casefold()
    if framework in ("deepspeed", "fsdp") and re.search(MEGATRON, name):
        return "megatron"
    if framework in ("ddp", "fsdp") and (compiled or re.search(rf"{JAX}|{_OWN_KERNELS}", name)):
        return "fused"
    if framework in ("ddp", "fsdp") and re.search(COMPOSER, name):
        return "loss"
    return "default"


def flash_generation_of(words: str, stated: str) -> int:
    """Which fused attention a run had, 0 where that follows from the framework that runs it.

    A version that is stated counts. llm-foundry's benchmarks ran ``attn_impl: triton``, FlashAttention 1 in Triton
    (default of ``scripts/train/benchmarking/submit_benchmarks.py``); Transformer Engine calls cuDNN. Megatron-LM with
    ``--use-flash-attn`` calls the package of that name, which was the second version while the option existed.
    """
    version = re.search(r"(?:fa|attn|attention|flash)[- _]?v?([123])\b", stated.casefold())
    if version:
        return int(version[1])
    if re.search("cudnn|transformer ?engine|maxtext|automodel", f"{words} {stated}".casefold()):
        return 3
    if stated == "1" and re.search("megatron", words.casefold()) and "core" not in words.casefold():
        return 2
    return 1 if re.search(COMPOSER, words.casefold()) else 0


def logged_losses_of(words: str) -> int:
    """Composer updates its training metrics after every forward pass, each with a cross entropy over all logits.

    llm-foundry has two (``use_train_metrics`` is on: LanguageCrossEntropy and LanguagePerplexity).
    """
    return 2 if re.search(COMPOSER, words.casefold()) else 0


def fuses_loss(words: str) -> bool:
    """Whether Megatron's loss is fused (``--cross-entropy-loss-fusion``).

    Recipes of NeMo and Megatron-Bridge set it, as the model zoo of Megatron-Core does; Megatron-LM's default is off.
    """
    return has_recipe_defaults(words) or re.search("megatron-core", words.casefold()) is not None


def fused_loss_of(words: str) -> Literal["native", "te"]:
    """Whose fused loss: benchmarks of Megatron-Bridge and Megatron-Core take Transformer Engine's; Megatron-LM and NeMo
    compile their own.

    Source: ``cross_entropy_fusion_impl = "te"`` in ``scripts/performance/utils/overrides.py`` of Megatron-Bridge 0.4;
    ``--cross-entropy-fusion-impl te`` in xtuner's benchmark of Megatron-Core, docs/en/benchmark.
    """
    return "te" if re.search("megatron-(bridge|core)", words.casefold()) else "native"


def fuses_accumulation(words: str) -> bool:
    """Whether gradients of weights are added inside of their product, as Megatron-LM does since 2022.

    Not where DeepSpeed's engine or InternEvo accumulates: autograd writes a gradient, and adds it afterwards.
    """
    return re.search("deepspeed|intern(evo|lm)|bigscience", words.casefold()) is None
