"""Variables of the shell that libraries would read in place of the plan: taken out of this process's environment.

A shell that ``accelerate launch`` was tried in, an MPI's allocation or a container's image leaves them behind, and no
library says that it found one: ``ACCELERATE_MIXED_PRECISION=bf16`` (accelerate 1.15, transformers 5.24) makes a run in
bf16 of one whose contract says fp32, ``ACCELERATE_USE_FSDP`` shards a model that the plan replicates, and the images of
NVIDIA set ``TORCH_ALLOW_TF32_CUBLAS_OVERRIDE``, with which torch 2.13 multiplies float32 matrices in TF32. How a run
trains and how it is laid out is the plan's to say, so it is trained all the same, and what was found is told once.

Left out: what changes speed, rounding or messages (``NCCL_*``, ``OMP_NUM_THREADS``, ``CUBLAS_WORKSPACE_CONFIG``,
``TORCH_LOGS``, ``HF_*``), and what the job script exports.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

PREFIXES = (
    "ACCELERATE_",  # accelerate 1.15: precision, accumulation, clipping, device, compilation, which engine
    "FSDP_",
    "PARALLELISM_CONFIG_",
    "MEGATRON_LM_",
    "OMPI_COMM_WORLD_",  # ranks of an MPI; DeepSpeed 0.19.8 ends where they are not torchrun's
    "MV2_COMM_WORLD_",
    "PMI_",
    "MPI_LOCAL",
)
NAMES = frozenset(
    (
        "NVIDIA_TF32_OVERRIDE",  # cuBLAS and cuDNN: float32 in TF32 or not, whatever the program asks for
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "NVTE_APPLY_QK_LAYER_SCALING",  # Transformer Engine's, which megatron-core 0.16.1 sets itself, or ends over
        "NVTE_FLASH_ATTN",
        "NVTE_FUSED_ATTN",
        "NVTE_UNFUSED_ATTN",
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD",  # torch.load, which then refuses the random states of a checkpoint
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",
    )
)
KEPT = frozenset(("ACCELERATE_DEBUG_MODE", "ACCELERATE_ENABLE_RICH", "ACCELERATE_CPU_AFFINITY"))  # not what is learnt
TOLD = 4


def leave_out(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Take them out, before a library is imported, for this process and its children; their names, sorted."""
    found = sorted(name for name in environment if name not in KEPT and (name in NAMES or name.startswith(PREFIXES)))
    for name in found:
        del environment[name]
    return found


def note(names: list[str]) -> str:
    """A sentence that names them; empty where there are none."""
    if not names:
        return ""
    more = f" and {len(names) - TOLD} more" if len(names) > TOLD else ""
    return f"note: the environment's {', '.join(names[:TOLD])}{more} are not read: the plan says how the run trains"
