"""FSDP2 as accelerate sets it up, at the plan's world size: ``python -m toolkit.verify.fsdp PLAN KIND RANK ANSWER``.

accelerate's own ``fsdp2_prepare_model`` and plugin (which modules are sharded together, what stays gathered, in
which types), transformers' model, fake tensors. Counted after one optimizer step has made the moments.
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from toolkit.emit import accelerate as emitted
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.verify import job

if TYPE_CHECKING:
    from toolkit.verify.pinned import Pinned


def count(plan: Plan, kind: str, rank: int) -> job.Answer:
    """Bytes by part and collectives of one rank."""
    from toolkit.verify.adapters import with_adapters
    from toolkit.verify.hugging_face import DTYPES, causal_model, configuration, require_runnable

    emitted.config(plan)  # refuses what accelerate would, or would run otherwise
    require_runnable(plan)
    if plan.workload.precision == "fp8":
        raise ToolkitError("FSDP2 with fp8 is not dry-run", remedy="verify the plan with --precision bf16")
    shape, s = configuration(plan), plan.strategy
    import torch

    from toolkit.verify import fake
    from toolkit.verify.pinned import Pinned
    from toolkit.verify.preference import frozen, is_preference, with_head

    pinned = Pinned()
    if s.offload:
        torch.Tensor.pin_memory = lambda tensor, *_: pinned.pin(tensor)  # type: ignore[method-assign]
    fake.process_group(rank, s.dp)
    mesh = _mesh(s.dp, s.dp_shard)
    with fake.tensors():
        # a base that is frozen needs no float32 copy, as the fine-tuning program loads it
        half = plan.workload.method != "full"
        dtype = DTYPES[plan.workload.precision] if half else torch.float32
        model = with_adapters(plan, with_head(plan, causal_model(plan, shape, dtype)))
        accelerator = _accelerator(plan, mesh)
        reference = None
        if is_preference(plan) and not half:
            from trl.models.utils import prepare_fsdp

            reference = prepare_fsdp(frozen(with_head(plan, causal_model(plan, shape, dtype))), accelerator)
        model = _prepared(plan, model, accelerator)
        return _steps(plan, model, pinned, reference) | {"rank": rank}


def _mesh(dp: int, shard: int) -> Any:
    """One axis, or two for hybrid sharding; made outside the fake tensors, which cannot index it."""
    from torch.distributed.device_mesh import init_device_mesh

    if dp == shard:
        return init_device_mesh("cpu", (dp,), mesh_dim_names=("dp_shard",))
    return init_device_mesh("cpu", (dp // shard, shard), mesh_dim_names=("dp_replicate", "dp_shard"))


def _accelerator(plan: Plan, mesh: Any) -> Any:
    """What the libraries ask of an Accelerator."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    os.environ["FSDP_VERSION"] = "2"
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=plan.strategy.zero_stage == 3,
        auto_wrap_policy="transformer_based_wrap",
        activation_checkpointing=plan.strategy.recompute == 2,
        cpu_offload=plan.strategy.offload == 2,
        cpu_ram_efficient_loading=False,
    )
    precision = plan.workload.precision
    if precision != "fp32":
        plugin.set_mixed_precision(precision)
    return SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh=mesh,
        parallelism_config=SimpleNamespace(fsdp_dim_names=list(mesh.mesh_dim_names)),
        mixed_precision="no" if precision == "fp32" else precision,
        is_main_process=False,
        device="cpu",
    )


def _prepared(plan: Plan, model: Any, accelerator: Any) -> Any:
    from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model
    from accelerate.utils.operations import convert_outputs_to_fp32

    plugin = accelerator.state.fsdp_plugin
    if plan.workload.precision != "fp32":
        model.forward = convert_outputs_to_fp32(model.forward)  # as Accelerator.prepare_model
    if plugin.activation_checkpointing:
        plugin.set_auto_wrap_policy(model)
        model = fsdp2_apply_ac(accelerator, model)
    return fsdp2_prepare_model(accelerator, model)


def _steps(plan: Plan, model: Any, pinned: Pinned, reference: Any) -> job.Answer:
    import torch

    from toolkit.verify.audit import bytes_by_part
    from toolkit.verify.hugging_face import adamw, parameter_groups
    from toolkit.verify.live import LiveBytes
    from toolkit.verify.preference import loss_of, rows

    loss_on = loss_of(plan, model, reference)
    optimizer = adamw(plan, parameter_groups(model, plan.contract.weight_decay))
    work, micro_batches = plan.workload, plan.strategy.gradient_accumulation_steps

    def holders() -> dict[str, list[torch.Tensor]]:
        parameters = list(model.parameters())
        return {
            "parameters": parameters,
            "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
            "optimizer": [value for state in optimizer.state.values() for value in state.values()],
            "reference": list(reference.parameters()) if reference is not None else [],
        }

    def move_out() -> None:
        """Shards, their gradients and their states are the host's."""
        if plan.strategy.offload:
            for tensors in holders().values():
                pinned.note(tensors)

    counter, between = LiveBytes(), dict[str, int]()
    for step in range(2):
        with counter if step else contextlib.nullcontext():
            if step:
                for tensors in holders().values():
                    counter.hold(tensors)
                move_out()
                pinned.leave_out(counter)
                counter.reset()
            for micro_batch in range(micro_batches):
                tokens = torch.zeros((rows(plan), work.sequence_length), dtype=torch.long)
                loss_on(model, tokens).backward()
                move_out()
                if micro_batch == max(0, micro_batches - 2):
                    between = bytes_by_part(holders(), pinned.keys)
                    if plan.strategy.offload:
                        between["host"] = pinned.bytes
            optimizer.step()
            optimizer.zero_grad()
    return {"counted_bytes": between | {"peak": counter.peak}, "collectives": counter.sent()}


if __name__ == "__main__":
    sys.exit(job.main(count, sys.argv[1:]))
