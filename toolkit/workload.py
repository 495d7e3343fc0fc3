"""Workload and Precision: what is trained, and how many bytes each value takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from toolkit.errors import Problem

# What the options and recipes take: far above any use, and products of these stay far below the 2^63 of a column.
MOST_TOKENS = 10**9  # of a sequence
MOST_SEQUENCES = 10**9  # of a step


class Precision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes per parameter of each kind of state: replaces every magic 16, 18 and 20."""

    parameters: float = 2.0
    gradients: float = 2.0
    master: float = 4.0
    optimizer_states: float = 8.0

    @property
    def total(self) -> float:
        """All states together, in bytes per parameter."""
        return self.parameters + self.gradients + self.master + self.optimizer_states


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One optimizer step handles ``global_batch_size`` sequences of ``sequence_length`` tokens."""

    sequence_length: int = 4096  # tokens
    global_batch_size: int = 256  # sequences
    total_tokens: float = 0.0
    method: str = "full"  # full | lora | qlora
    optimizer: str = "adamw"  # adamw | adamw_8bit | sgd | muon
    precision: str = "bf16"  # bf16 | fp16 | fp32 | fp8
    lora_rank: int = 16
    lora_targets: str = "all-linear"  # all-linear | attention
    attention: str = "flash"  # flash (never stores the score matrix) | eager
    # which fused attention: 1 FlashAttention 1 and its Triton version (2022 to 2023), 2 FlashAttention 2, 3 cuDNN and
    # FlashAttention 3 (Transformer Engine); 0: what the framework brings
    flash_generation: int = 0
    logged_losses: int = 0  # cross entropies beside the loss, which a training loop computes for what it logs
    fused_cross_entropy: bool = False  # true: logits are never whole in memory (Megatron: a compiled loss)
    # of Megatron's fused loss (--cross-entropy-fusion-impl). native: compiled, with float32 copies; te: Transformer
    # Engine's kernel, which writes the gradient over the logits
    fused_loss: Literal["native", "te"] = "native"
    # default (the framework's own) | bf16 (the 16 bits of the parameters, fp16 too) | fp32
    gradient_accumulation_dtype: str = "default"
    # Megatron adds to the gradient of weights inside of its product (gradient_accumulation_fusion); not its older forks
    fused_accumulation: bool = True
    dropout: bool = False
    # how tokens travel to experts. alltoall: every copy by itself; deepep: once to each node (DeepEP, HybridEP)
    expert_dispatch: Literal["alltoall", "deepep"] = "alltoall"
    expert_overlap: bool = (
        False  # travel of one micro batch beside the computation of another (Megatron's 1F1B overlap)
    )
    # what CUDA graphs hold, so that the host does not issue it kernel by kernel. attention: attention, norms and the
    # router (Transformer Engine's partial graphs); full: the whole iteration
    cuda_graphs: Literal["none", "attention", "full"] = "none"
    launch_blocking: bool = False  # CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel, nothing runs beside it
    # what computes layers and loss. default: what the framework of the strategy brings; loss: the loss alone is fused;
    # fused: norms, activations and the loss by compiled or hand-written kernels; megatron: Megatron's layers under
    # another framework's sharding; unfused: Megatron's layers operator by operator, as they run on processors
    kernels: str = "default"
    # default: the framework's own; bf16: weights, gradients and optimizer states in 16 bits, no float32 anywhere
    # (PyTorch's DDP and FSDP only); fp8: matrices in 8 bits alone, without a 16-bit copy (Megatron's fp8_param_gather)
    weights: str = "default"
    # who keeps the states. default: the framework of the strategy; deepspeed: DeepSpeed's pipeline engine, ZeRO-1 or
    # BF16_Optimizer around Megatron's layers (Megatron-DeepSpeed, GPT-NeoX); nanotron: Megatron's parallelism with
    # PyTorch's DDP and operators; internevo: InternEvo's HybridZeroOptimizer, beside its FSDP too
    engine: str = "default"
    # likelihood: every sequence by itself; dpo: pairs of two sequences against a frozen reference model, so that
    # ``global_batch_size`` and a strategy's micro batch count pairs (estimate/preference.py)
    objective: str = "likelihood"
    # what selective recomputation runs again in Megatron, joined by "+" (estimate/selective.py has the names)
    recompute_modules: str = "core_attn"

    @property
    def sequences_per_step(self) -> int:
        """Sequences that a step reads: two of each pair with objective dpo."""
        return self.global_batch_size * (2 if self.objective == "dpo" else 1)


# The words of the fields that are no Literal; recompute_modules are names joined by "+" (estimate/selective.py)
WORDS: dict[str, tuple[str, ...]] = {
    "method": ("full", "lora", "qlora"),
    "optimizer": ("adamw", "adamw_unfused", "adamw_paged", "adamw_8bit", "adamw_8bit_paged", "sgd", "muon"),
    "precision": ("bf16", "fp16", "fp32", "fp8"),
    "lora_targets": ("all-linear", "attention"),
    "attention": ("flash", "eager"),
    "gradient_accumulation_dtype": ("default", "bf16", "fp32"),
    "kernels": ("default", "loss", "fused", "megatron", "unfused"),
    "weights": ("default", "bf16", "fp8"),
    "objective": ("likelihood", "dpo"),
    "engine": ("default", "deepspeed", "nanotron", "internevo"),
}
RECOMPUTED = ("core_attn", "layernorm", "mla_up_proj", "mlp", "mlp_act", "moe", "moe_act", "shared_experts")
MOST_TOTAL_TOKENS = 1e18  # of a whole run, far above any
MOST_GENERATION = 3


def batch_unit(workload: Workload) -> str:
    """What batches count, in words."""
    return "pairs of sequences" if workload.objective == "dpo" else "sequences"


def workload_problems(workload: Workload) -> Iterator[Problem]:
    """What no formula knows: words and numbers of a file that somebody edited; messages begin with the field."""
    for name, allowed in WORDS.items():
        value = getattr(workload, name)
        if value not in allowed:
            yield Problem(f"{name} is {value[:40]!r}", f"it can be {', '.join(allowed)}")
    unknown = {each for each in workload.recompute_modules.split("+") if each} - {*RECOMPUTED}
    if unknown:
        yield Problem(
            f"recompute_modules is {workload.recompute_modules[:80]!r}",
            f"it joins names with +: {', '.join(RECOMPUTED)}",
        )
    if not 0.0 <= workload.total_tokens <= MOST_TOTAL_TOKENS:  # also where it is no number
        yield Problem(f"total_tokens is {workload.total_tokens}", f"it can be 0 (not known) to {MOST_TOTAL_TOKENS:g}")
    if workload.flash_generation not in range(MOST_GENERATION + 1):
        yield Problem(f"flash_generation is {workload.flash_generation}", f"it can be 0 to {MOST_GENERATION}")
