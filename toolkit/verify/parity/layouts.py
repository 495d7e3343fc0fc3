"""Names of layouts, ``tp2+sp`` or ``zero3``, to what they pin in a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolkit.errors import Problems, ToolkitError

DEFAULT = {
    "finetune": ("ga4", "ddp2", "zero0", "zero1", "zero2", "zero3", "fsdp2", "lora", "zero3+lora"),
    "pretrain": ("ga4", "dp2", "zero1", "tp2", "tp2+sp", "pp2", "pp2+vpp2", "cp2", "tp2+pp2"),
}
EXPERTS = ("ep2",)  # of a model that has them, too
WITH_EXPERTS = {"tiny": "tiny-moe"}  # what stands in for a dense model where a layout splits experts
AXES = {
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
    "dp": "dp",
    "vpp": "virtual_pipeline_stages",
    "zero": "zero_stage",
    "ga": "gradient_accumulation_steps",
    "sp": "sequence_parallel",
    "ddp": "dp",
    "fsdp": "dp",
    "lora": "method",
}
BARE = {"sp": 1, "zero": 1, "lora": 1, "ga": 4}  # of a word without its number; degrees are 2
WORD = re.compile(r"(vpp|zero|fsdp|ddp|lora|tp|pp|cp|ep|dp|ga|sp)(\d*)")
KNOWN = "tp2, pp2, vpp2, cp2, ep2, dp2, sp, zero0 to zero3, ga4, ddp2, fsdp2, lora, and several joined with +: tp2+pp2"


def parse(name: str, program: str) -> dict[str, Any]:
    """The options of ``toolkit plan`` that pin this layout; raises ToolkitError for one that is none.

    Everything that the name leaves out is 1 or off. Data parallelism is as wide as the name's ZeRO stage or expert
    parallelism needs: 2 ranks where it does not say. ``lora`` is another experiment (method, not layout): adapters
    against adapters.
    """
    parts = [WORD.fullmatch(word) for word in re.split(r"[+x*-]", _spaced(name.strip().casefold())) if word]
    if not parts or None in parts:
        raise ToolkitError(f"{name!r} is not a layout", remedy=f"use {KNOWN}")
    words = [(match[1], int(match[2] or BARE.get(match[1], 2))) for match in parts if match]
    found: dict[str, Any] = {"framework": "megatron" if program == "pretrain" else "ddp"}
    with Problems() as problems:
        for word, number in words:
            if program == "finetune" and word in ("tp", "pp", "vpp", "cp", "ep", "sp"):
                problems.add(f"{name}: the finetune program has no {word}", "use zero0 to zero3, ddp2, fsdp2, dp2, ga4")
            if program == "pretrain" and word == "lora":
                problems.add(f"{name}: the pretrain program trains no adapters", "use a recipe of the finetune program")
            if program == "pretrain" and (word in ("ddp", "fsdp") or (word == "zero" and number > 1)):
                problems.add(
                    f"{name}: Megatron's distributed optimizer is ZeRO-1, the pretrain program has no {word}{number}",
                    "use zero1 or dp2, or a recipe of the finetune program",
                )
            if AXES[word] in found:
                problems.add(f"{name} says {word} twice", f"use {KNOWN}")
            if number < 1 and word != "zero" or word == "zero" and number > 3:
                problems.add(f"{name}: {word}{number} is no degree", f"use {KNOWN}")
            found[AXES[word]] = number if word != "lora" else "lora"
            if word == "zero" and program == "finetune":
                found["framework"] = "deepspeed"
            if word == "fsdp":
                found |= {"framework": "fsdp", "zero_stage": 3}
    wide = found.get("ep", 1)
    if "dp" not in found:
        found["dp"] = max(wide, 2) if "zero_stage" in found or list(found)[1:] == ["method"] else wide
    for word in ("tp", "pp", "cp", "ep", "virtual_pipeline_stages"):
        found.setdefault(word, 1)
    found.setdefault("zero_stage", 0)
    found["sequence_parallel"] = bool(found.get("sequence_parallel"))
    return found | {"recompute": "none", "gpus": str(found["dp"] * found["tp"] * found["pp"] * found["cp"])}


def _spaced(name: str) -> str:
    """``tp2pp2`` as ``tp2+pp2``."""
    return re.sub(r"(?<=\d)(?=[a-z])(?!x)", "+", name)


def batches(pinned: Mapping[str, Any], global_batch: int, one_cut: bool = False) -> dict[str, int]:
    """Micro batch and accumulation: the whole batch at once, in four where there is a pipeline, or as the name says.

    With ``one_cut`` every layout has micro batches of a quarter of the batch: where the contract balances experts over
    micro batches, that loss is a product of means over one, and cut otherwise, it is another loss. A batch that cannot
    be cut so is cut into fewer; the rules of plans refuse what then does not divide.
    """
    ranks = max(1, pinned["dp"])
    wanted = pinned.get("gradient_accumulation_steps", max(1, 4 // ranks) if one_cut else 4 if pinned["pp"] > 1 else 1)
    if "gradient_accumulation_steps" not in pinned:
        while wanted > 1 and global_batch % (ranks * wanted):
            wanted //= 2
    return {"micro_batch_size": max(1, global_batch // (ranks * wanted)), "gradient_accumulation_steps": wanted}


def defaults(program: str, experts: bool) -> tuple[str, ...]:
    """What is compared when nothing is asked for; ``experts``: the model has some, or one that has stands in for it."""
    return DEFAULT[program] + (EXPERTS if experts and program == "pretrain" else ())
