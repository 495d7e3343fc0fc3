"""What a run keeps of each parameter: its weights, the sums of its gradients, and its optimizer."""

from __future__ import annotations

import re

from toolkit.validate.frameworks import engine_of, has_recipe_defaults


def weights_of(words: str, framework: str, precision: str, computed: str, notes: str = "") -> str:
    """bf16 where the whole model is cast to it: LitGPT's ``bf16-true``, and torchtune's ``dtype: bf16``; and where
    DeepSpeed's master copy is (``bf16_master_weights_and_grads``).

    fp8 where Megatron keeps its matrices in 8 bits alone: said so (``fp8 params``, ``native fp8``), or in a recipe of
    NeMo or Megatron-Bridge (``fp8_param_gather = True`` of ``mixed_precision.py``), except by blocks.
    """
    if framework == "megatron" and computed == "fp8":
        said = re.search(r"fp8[_ -]param|native[_ ]fp8", f"{precision} {notes}".casefold())
        recipe = has_recipe_defaults(words) and not re.search("block|subchannel", precision.casefold())
        return "fp8" if said or recipe else "default"
    if framework == "deepspeed" and re.search("bf16 master", notes.casefold()):
        return "bf16"
    whole = "true" in precision.casefold() or re.search("torchtune", words.casefold()) is not None
    torch = framework in ("ddp", "fsdp")
    return "bf16" if torch and whole and "bf16" in precision.casefold() else "default"


def sums_of(words: str, framework: str, precision: str, optimizer: str) -> str:
    """In what gradients are summed and reduced: bf16 (16 bits), or default, the framework's own.

    Source: ``grad_reduce_in_fp32 = False`` in NeMo's scripts/performance/helpers.py and in ``perf_recipes/_common.py``
    of Megatron-Bridge, whose Muon presets keep float32; ``grad_sync_dtype: bf16`` of the launcher before them.
    InternEvo keeps and reduces gradients in the type of the parameters (its hybrid_zero_optim.py). Megatron-LM sums in
    float32 for bf16 only (``--accumulate-allreduce-grads-in-fp32`` is off by itself with fp16).
    """
    if framework != "megatron" or engine_of(words, framework) == "deepspeed":
        return "default"
    if precision == "fp16":
        return "bf16" if re.search("megatron", words.casefold()) else "default"
    if precision in ("bf16", "fp8") and re.search("intern(evo|lm)", words.casefold()):
        return "bf16"
    halved = precision in ("bf16", "fp8") and has_recipe_defaults(words) and "muon" not in optimizer.casefold()
    return "bf16" if halved else "default"


def optimizer_of(words: str) -> str:
    """Our name of an optimizer: Muon, SGD, or a kind of AdamW, which anything else is taken for."""
    text = words.casefold()
    if "muon" in text:
        return "muon"
    if re.search("sgd", text):
        return "sgd"
    eight_bit = "_8bit" if re.search("8-?bit", text) else ""
    return f"adamw{eight_bit}{'_paged' if 'paged' in text else ''}"


def knows_optimizer(words: str) -> bool:
    """Whether the optimizer is one of ours, or only a way to run it (fused, distributed); blank is AdamW."""
    ours = r"adam|muon|sgd|momentum|fused|dist\w*[ _-]?opt|default|zero|^$"
    return not has_other_states(words) and re.search(ours, words.casefold()) is not None


def has_other_states(words: str) -> bool:
    """Whether the optimizer is known to keep more or less than the two states of Adam, in a way we do not model."""
    others = r"lion|ada-?factor|adam-?mini|shampoo|\bsoap\b|galore|apollo|\bcame\b|\blars\b|rms-?prop|ada-?grad|\bsm3\b"
    return re.search(others, words.casefold()) is not None
