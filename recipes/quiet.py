"""Warnings of the libraries that say nothing about a run and that its user cannot act on: not shown, in no process.

Every rank would say them at every start. What is silenced is named here by how it begins; all others are shown. A child
that begins as a fresh interpreter (:mod:`recipes.processes`) knows of it by ``PYTHONWARNINGS``.
"""

from __future__ import annotations

import os
import re
import warnings

KNOWN: tuple[tuple[type[Warning], str], ...] = (
    # names that torch 2.13 will drop, used by DeepSpeed 0.19.8 and megatron-core 0.16.1
    (FutureWarning, "`torch.distributed."),
    # used by megatron-core 0.16.1 where it loads and writes checkpoints
    (FutureWarning, "Please use DTensor instead and we are deprecating ShardedTensor"),
    (FutureWarning, "`load_state_dict` is deprecated and will be removed"),
    # used by peft 0.21
    (FutureWarning, "`is_gradient_checkpointing` is deprecated"),
    # torch 2.13, of the shards of float32 weights in megatron-core's distributed optimizer, which are views
    (UserWarning, "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"),
    # torch 2.13, where one process writes a checkpoint in another form for all
    (UserWarning, "torch.distributed is disabled"),
    # megatron-core 0.16.1, of what it falls back to; on GPUs the start itself says which kernels are used
    (UserWarning, "Transformer Engine and Apex are not installed"),
)


def known_warnings() -> None:
    """Silence them here and in children; what the user asks for with ``PYTHONWARNINGS`` or ``-W`` stays as it is."""
    asked = os.environ.get("PYTHONWARNINGS", "")
    ours = [f"ignore:{begin}:{kind.__name__}" for kind, begin in KNOWN]
    if asked.startswith(ours[0]):
        return
    os.environ["PYTHONWARNINGS"] = ",".join([*ours, *filter(None, [asked])])  # the last one that fits holds
    if not asked:
        for kind, begin in KNOWN:
            warnings.filterwarnings("ignore", category=kind, message=re.escape(begin))
