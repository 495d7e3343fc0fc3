"""The program's own model, wrappers, optimizer and schedule on fake tensors: ``toolkit verify`` of a Megatron plan.

``python -m recipes.pretrain.dry_run PLAN KIND RANK ANSWER`` builds with :mod:`recipes.pretrain.model` for one rank
of a fake process group and runs the library's schedule with its forward step. Two layers that
Transformer Engine brings stand for themselves: attention and norms that keep what its kernels keep; the fused
SwiGLU is the library's own. Mixtures run with balanced routing (``BALANCED``), router, all-to-all and experts the
library's own, the experts one after another. Random states and initial values are left out.

Counted: the buffers of megatron-core's wrapper, the optimizer's tensors, and the most bytes alive in a whole step.
The optimizer's kernels are fused, as with Transformer Engine or Apex; gradient accumulation is not, as without them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from recipes.pretrain.config import CoreConfig
from recipes.pretrain.machine import Machine, transformer_settings
from toolkit.emit.megatron import core_config
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.verify import job

# Where tokens go depends on values, which fake tensors have not. The library's own mode that drops what is above an
# expert's share and pads what is below makes every shape static: each expert gets its share, a load of 1.
BALANCED = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True, "moe_grouped_gemm": False}


def count(plan: Plan, kind: str, rank: int) -> job.Answer:
    """Bytes by part and collectives of one rank."""
    core = msgspec.convert(core_config(plan), CoreConfig)
    core.parallel["create_gloo_process_groups"] = False
    if plan.workload.precision == "fp8":
        raise ToolkitError("fp8 needs Transformer Engine and a GPU", remedy="verify the plan with --precision bf16")
    if plan.model.is_moe:
        core.transformer.update(BALANCED)
    from recipes.pretrain import cpu_shim

    cpu_shim.install()
    from toolkit.verify import fake

    fake.process_group(rank, plan.cluster.num_gpus)
    _patch(plan.workload.kernels != "unfused")
    machine = Machine(name="dry", device="cpu", backend="fake", transformer_engine=False, apex=False)
    from recipes.pretrain import model

    with fake.tensors():
        return _steps(plan, core, model.build(core, machine, plan.model.vocab_size)) | {"rank": rank}


def _patch(fused: bool) -> None:
    """Leave out what needs values; let the two layers keep what fused kernels keep, where the plan has them."""
    import megatron.core.optimizer.clip_grads as clipping
    import megatron.core.tensor_parallel.random as library_random
    import torch

    from recipes.pretrain import layers, model, optimizer
    from toolkit.verify.fake import FlashAttention, FusedNorm

    library_random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    library_random._get_all_rng_states = lambda: (None, None, None)
    library_random._set_all_rng_states = lambda *_: None
    model.initialise = lambda *_, **__: None
    # norm, scaling and Adam in one kernel each, as with Transformer Engine or Apex: no temporaries
    clipping.l2_norm_impl = lambda *_: (torch.ones(1), None)
    clipping.multi_tensor_scale_impl = lambda *_: None
    adam = optimizer.adam
    optimizer.adam = lambda *given, foreach, **keywords: adam(*given, fused=True, **keywords)

    # groups of gloo, for checkpoints, would wait for the other ranks
    model.get_megatron_optimizer = functools.partial(model.get_megatron_optimizer, use_gloo_process_groups=False)

    _experts()
    if not fused:  # a plan for processors: the modules as they are
        return

    def settings(machine: Machine, wanted: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        found, notes = transformer_settings(machine, wanted)
        return found | {"bias_activation_fusion": wanted.get("bias_activation_fusion", False)}, notes

    def norm(module: torch.nn.Module, value: torch.Tensor) -> torch.Tensor:
        return FusedNorm.apply(value, *module.parameters())

    def attention(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> torch.Tensor:
        return FlashAttention.apply(query.contiguous(), key.contiguous(), value.contiguous()).flatten(2)

    model.transformer_settings = settings
    torch.nn.RMSNorm.forward = torch.nn.LayerNorm.forward = norm
    layers.CausalAttention.forward = attention


def _experts() -> None:
    """Sizes that experts read, and their activation in one kernel.

    Experts that run one after another read how many tokens each has: known without values, so made real. The
    library compiles the activation and its gradient; here only what the compiled ones return is made.
    """
    import megatron.core.fusions.fused_bias_swiglu as activation
    import torch
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    dispatcher: Any = MoEAlltoAllTokenDispatcher
    preprocess = dispatcher.preprocess

    def sizes(this: Any, routing_map: torch.Tensor) -> torch.Tensor:
        preprocess(this, routing_map)
        each = this.capacity * this.tp_size * this.ep_size
        with unset_fake_temporarily():
            return torch.full((this.num_local_experts,), each)

    dispatcher.preprocess = sizes
    activation.weighted_swiglu = lambda value, _: value.new_empty((*value.shape[:-1], value.shape[-1] // 2))
    activation.weighted_swiglu_back = lambda _, value, weights: (torch.empty_like(value), torch.empty_like(weights))


def _batches(plan: Plan) -> Iterator[dict[str, Any]]:
    import torch

    shape = (plan.strategy.micro_batch_size, plan.workload.sequence_length)
    while True:
        tokens = torch.zeros(shape, dtype=torch.long)
        mask = torch.ones(shape)
        yield {"tokens": tokens, "labels": tokens, "position_ids": tokens, "loss_mask": mask}


def _steps(plan: Plan, core: CoreConfig, built: Any) -> job.Answer:
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from recipes.pretrain import forward
    from toolkit.verify.audit import bytes_by_part
    from toolkit.verify.live import LiveBytes

    several = len(built.chunks) > 1

    def holders() -> dict[str, list[Any]]:
        return _holders(built)

    counter = LiveBytes()
    for step in range(2):
        with counter if step else contextlib.nullcontext():
            if step:
                for tensors in holders().values():
                    counter.hold(tensors)
                counter.reset()
            for chunk in built.chunks:
                chunk.zero_grad_buffer()
            built.optimizer.zero_grad()
            batches = [_batches(plan) for _ in built.chunks]
            get_forward_backward_func()(
                forward_step_func=forward.forward_step("cpu"),
                data_iterator=batches if several else batches[0],
                model=built.chunks if several else built.chunks[0],
                num_microbatches=plan.strategy.gradient_accumulation_steps,
                seq_length=core.training.sequence_length,
                micro_batch_size=core.training.micro_batch_size,
                forward_only=False,
            )
            built.optimizer.step()
    return {"counted_bytes": bytes_by_part(holders()) | {"peak": counter.peak}, "collectives": counter.sent()}


def _holders(built: Any) -> dict[str, list[Any]]:
    parameters = [parameter for chunk in built.chunks for parameter in chunk.parameters()]
    buffers = [buffer for chunk in built.chunks for buffer in chunk.buffers + chunk.expert_parallel_buffers]
    optimizers = getattr(built.optimizer, "chained_optimizers", [built.optimizer])
    inner = [optimizer.optimizer for optimizer in optimizers if optimizer.optimizer is not None]
    states = [value for one in inner for state in one.state.values() for value in state.values()]
    masters = [parameter for one in inner for group in one.param_groups for parameter in group["params"]]
    return {
        "parameters": parameters + [buffer.param_data for buffer in buffers if buffer.param_data is not None],
        "gradients": [buffer.grad_data for buffer in buffers],
        "optimizer": masters + [value for value in states if hasattr(value, "untyped_storage")],
    }


if __name__ == "__main__":
    sys.exit(job.main(count, sys.argv[1:]))
