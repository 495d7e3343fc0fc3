"""Distributed checkpoints that another layout can read: tensor, pipeline and data parallel sizes may all change.

megatron-core's ``torch_dist`` format holds each tensor under its global name and place. Two things are
not obvious: the distributed optimizer must be told ``fully_reshardable`` at every save and load (its default
fails in 0.16.1: "ShardedTensor.flattened_range is not supported"), and a checkpoint of the distributed
optimizer cannot be loaded into the ordinary one, nor one of several expert-parallel ranks into one.

Not saved: random states. They matter to dropout only, which pretraining does not use here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

from recipes import ranks
from recipes import resume as runs
from recipes.pretrain.model import Built
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import checkpoint


def save(plan: Plan, folder: Path, built: Built, step: int, keep: int, position: dict[str, Any]) -> None:
    """Write ``checkpoint-N``, declare it whole once every rank has written, and drop older ones.

    ``position`` is recorded with it: which data was read, and up to where.
    """
    whole_parameters(built)
    target = folder / f"checkpoint-{step}"
    first = torch.distributed.get_rank() == 0
    if first:
        target.mkdir(parents=True)
    torch.distributed.barrier()
    dist_checkpointing.save(_state(plan, built, step), str(target), save_strategy(), None)
    torch.distributed.barrier()
    if first:
        checkpoint.commit(target, facts(plan) | {"step": step} | position)
        checkpoint.prune(folder, keep)
    torch.distributed.barrier()


def whole_parameters(built: Built) -> None:
    """With overlapped parameter gathers a rank has only its own share of the last update until the next forward."""
    for chunk in built.chunks:
        if chunk.ddp_config.use_distributed_optimizer and chunk.ddp_config.overlap_param_gather:
            chunk.start_param_sync(force_sync=True)


def resume(plan: Plan, folder: Path, built: Built, rank: int, data_sha256: str) -> int:
    """Load the newest whole checkpoint of this experiment; the step after which it was written, 0 without one."""
    name = ranks.on_first_rank(lambda: _newest(plan, folder, data_sha256), rank)
    if name is None:
        return 0
    state = dist_checkpointing.load(_state(plan, built, 0, loading=True), str(folder / name), strict="raise_unexpected")
    for key, chunk in zip(keys(built.chunks), built.chunks, strict=True):
        chunk.module.load_state_dict(state[key])
    with torch.no_grad():
        built.optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def facts(plan: Plan) -> dict[str, Any]:
    """What a later start must share with a checkpoint to go on from it."""
    return runs.facts(plan) | {"distributed_optimizer": plan.strategy.zero_stage > 0, "ep": plan.strategy.ep}


def _newest(plan: Plan, folder: Path, data_sha256: str) -> str | None:
    name = runs.newest(plan, folder)
    if name is None:
        return None
    saved, wanted = checkpoint.facts(folder / name), facts(plan)
    if saved.get("distributed_optimizer") != wanted["distributed_optimizer"]:
        raise ToolkitError(
            f"{folder / name} was saved {'with' if saved.get('distributed_optimizer') else 'without'} the distributed"
            " optimizer, the plan is the other way",
            remedy=f"plan again with --zero {int(bool(saved.get('distributed_optimizer')))}",
        )
    if saved.get("data_sha256", data_sha256) != data_sha256:
        raise ToolkitError(
            f"{folder / name} was trained on other tokens than {plan.contract.dataset!r} now has",
            remedy="restore the data, or start anew in another --output-dir",
        )
    if (saved.get("ep", 1) == 1) != (wanted["ep"] == 1):
        raise ToolkitError(
            f"{folder / name} was saved with ep {saved.get('ep', 1)}, the plan has ep {wanted['ep']}",
            remedy="the optimizer state cannot go between ep 1 and more; any ep above 1 can follow any other",
        )
    return name


def save_strategy() -> Any:
    """The library's format, written by all ranks that hold a copy, each a share."""
    strategy = get_default_save_sharded_strategy("torch_dist")
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return FullyParallelSaveStrategyWrapper(strategy, group)


def keys(chunks: list[Any]) -> list[str]:
    """The names of the chunks in a state."""
    return ["model"] if len(chunks) == 1 else [f"model{number}" for number in range(len(chunks))]


def weights_state(chunks: list[Any]) -> dict[str, Any]:
    """The sharded state of bare chunks, without an optimizer."""
    metadata = {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "singleton_local_shards": False,
    }
    return {key: chunk.sharded_state_dict(metadata=metadata) for key, chunk in zip(keys(chunks), chunks, strict=True)}


def _state(plan: Plan, built: Built, step: int, loading: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }
    if plan.strategy.zero_stage:
        metadata["distrib_optim_sharding_type"] = "fully_reshardable"
    # of the unwrapped models: the wrapper would put "module." before every name
    models = {
        key: chunk.module.sharded_state_dict(metadata=metadata)
        for key, chunk in zip(keys(built.chunks), built.chunks, strict=True)
    }
    optimizer = built.optimizer.sharded_state_dict(dict(models), is_loading=loading, metadata=metadata)
    return {"step": step, **models, "optimizer": optimizer}
