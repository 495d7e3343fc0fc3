"""Which layers run again, from how frameworks and people say so."""

from __future__ import annotations

import re

from toolkit.validate.frameworks import MEGATRON

_RECOMPUTES = r"torchtune|llama-factory|xtuner"


def checkpoints_whole_layers(words: str, framework: str) -> bool:
    """Whether the switch for recomputation is one that runs whole layers again: not so in MaxText and Megatron.

    Pax saves nothing of repeated layers by default (``CHECKPOINT_POLICY`` of paxml/tasks/lm/model_params.py).
    """
    name = words.casefold()
    return framework in ("ddp", "deepspeed", "fsdp") and not re.search(rf"maxtext|{MEGATRON}", name)


def recomputed_layers(text: str) -> int:
    """2 for ``selective (every 2nd layer)``: of how many layers one runs again; torchtitan's ``selective-layer`` is 2.

    0 where the text says nothing about layers.
    """
    named = re.search(r"every (\d{1,3})(?:st|nd|rd|th) layer", text)
    if named:
        return int(named[1])
    return 2 if re.search(r"selective[- ]layer\b", text) else 0


def recomputed_in_blocks(text: str) -> int:
    """8 for ``full:block/8``: the first layers of a stage that run again (``--recompute-num-layers`` of Megatron-LM).

    0 where the number is not stated.
    """
    named = re.search(r"block\D{0,4}(\d{1,4})\b", text.casefold()) or re.search(r"(\d{1,4})\s*layers", text.casefold())
    return int(named[1]) if named else 0


def recomputes_by_default(words: str) -> bool:
    """Whether the framework's recipes recompute every layer unless told otherwise.

    Source: ``enable_activation_checkpointing: True`` in the recipes of torchtune; ``disable_gradient_checkpointing``
    of LLaMA-Factory is false; ``use_activation_checkpointing=True`` of XTuner's SupervisedFinetune.
    """
    return re.search(_RECOMPUTES, words.casefold()) is not None
