"""What of the communication hides behind computation, and how tokens travel to experts, by framework."""

from __future__ import annotations

import re
from typing import Literal

from toolkit.validate.frameworks import has_recipe_defaults


def tensor_overlap_of(words: str, sequence_parallel: bool) -> Literal["none", "backward", "all"]:
    """What of the tensor-parallel communication runs beside matrix products.

    Recipes of NeMo and Megatron-Bridge set ``tp_comm_overlap`` (user buffers; needs sequence parallelism). BigScience's
    fork split from Megatron-LM in 2021, before the asynchronous all-reduce of the backward pass.
    """
    if re.search("bigscience", words.casefold()):
        return "none"
    return "all" if sequence_parallel and has_recipe_defaults(words) else "backward"


def data_overlap_of(words: str) -> Literal["none", "gradients", "all"]:
    """What of Megatron's data axis runs beside computation; what a name does not tell is taken as overlapped.

    Megatron-LM's own default is to overlap nothing (``--overlap-grad-reduce`` turns it on). DeepSpeed's pipeline
    engine reduces after its last backward pass (``_exec_reduce_grads`` in runtime/pipe/engine.py); InternEvo
    broadcasts parameters after the step (``overlap_sync_param=False`` in its configurations).
    """
    if re.search("megatron", words.casefold()) and re.search("deepspeed", words.casefold()):
        return "none"
    if re.search("megatron-lm", words.casefold()) and not has_recipe_defaults(words):
        return "none"
    return "gradients" if re.search("intern(evo|lm)", words.casefold()) else "all"


def expert_dispatch_of(words: str) -> Literal["alltoall", "deepep"]:
    """How tokens travel to experts where nothing is said: Megatron-Bridge's recipes of mixtures use DeepEP or HybridEP.

    Source: ``moe_flex_dispatcher_backend`` in ``perf_recipes`` of Megatron-Bridge; Megatron-LM's own default is to
    send each copy by itself.
    """
    return "deepep" if re.search("megatron-bridge", words.casefold()) else "alltoall"
