"""What depends on the machine a job lands on: the device, the backend, and the kernels that are installed there.

A plan is made for one kind of machine and its file may name fused kernels that another one lacks. They
change speed, not arithmetic beyond rounding, so they are switched off with a message instead of failing
the job. Everything that changes what is learnt stays as the file says.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from recipes.finetune.checks import is_cpu
from toolkit.errors import ToolkitError
from toolkit.plan import Plan

FP8 = (8, 9)  # compute capability of the first GPUs with such products (Ada; Hopper is 9.0)


@dataclass(frozen=True)
class Machine:
    """Device and backend of this process, and whether Transformer Engine and Apex can be imported."""

    name: str
    device: str  # cuda | cpu
    backend: str  # nccl | gloo
    transformer_engine: bool
    apex: bool


def detect(plan: Plan) -> Machine:
    """Get this process ready for what the plan is for: its GPU, or the CPU shim. Imports torch.

    Raises ToolkitError where the plan is for GPUs and this process has none.
    """
    if is_cpu(plan):
        return on_cpu()
    _alone()
    import torch

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.device_count() <= local_rank:
        raise ToolkitError(
            f"the plan is for {plan.cluster.accelerator.name}; local rank {local_rank} finds"
            f" {torch.cuda.device_count()} GPUs on this machine",
            remedy="start it on such a machine, or plan for this one with --cluster local-cpu",
        )
    torch.cuda.set_device(local_rank)
    engine = importlib.util.find_spec("transformer_engine") is not None
    if plan.workload.precision == "fp8" and not (engine and torch.cuda.get_device_capability() >= FP8):
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        raise ToolkitError(
            f"fp8 needs compute capability 8.9 and Transformer Engine; {torch.cuda.get_device_name()} has {capability}"
            f" and the engine is {'' if engine else 'not '}installed",
            remedy="plan with --precision bf16",
        )
    return Machine(
        name=torch.cuda.get_device_name(),
        device="cuda",
        backend="nccl",
        transformer_engine=engine,
        apex=importlib.util.find_spec("apex") is not None,
    )


def on_cpu() -> Machine:
    """Processors only, also on a machine that has GPUs. Imports torch."""
    _alone()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from recipes.pretrain import cpu_shim

    cpu_shim.install()
    return Machine(name="cpu", device="cpu", backend="gloo", transformer_engine=False, apex=False)


def _alone() -> None:
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)  # started without torchrun: one process


def transformer_settings(machine: Machine, wanted: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The TransformerConfig keywords for this machine, and one sentence for each that differs from the file."""
    settings, notes = dict(wanted), []
    engine_only = (
        "apply_rope_fusion",
        "moe_permute_fusion",
        "moe_router_fusion",
        "moe_grouped_gemm",
        "tp_comm_overlap",
    )
    switched_off = {
        **{key: "needs Transformer Engine" for key in engine_only if not machine.transformer_engine},
        **({} if machine.transformer_engine or machine.apex else {"gradient_accumulation_fusion": "needs Apex"}),
        **({} if machine.transformer_engine else {"persist_layer_norm": "needs Apex or Transformer Engine"}),
        **({} if machine.apex else {"masked_softmax_fusion": "needs Apex"}),
    }
    if machine.device == "cpu":
        for key in ("bias_activation_fusion", "bias_dropout_fusion", "cross_entropy_loss_fusion"):
            switched_off[key] = "is compiled for GPUs"
    for key, reason in switched_off.items():
        if settings.get(key):
            settings[key] = False
            notes.append(f"transformer.{key} is off: it {reason}")
    if machine.backend == "gloo" and settings.get("overlap_p2p_comm") and settings.get("deallocate_pipeline_outputs"):
        # gloo's isend still reads the buffer that the library frees: losses go wrong without an error.
        settings["deallocate_pipeline_outputs"] = False
        notes.append("transformer.deallocate_pipeline_outputs is off: gloo reads the freed buffer")
    settings["use_cpu_initialization"] = machine.device == "cpu"
    return settings, notes
