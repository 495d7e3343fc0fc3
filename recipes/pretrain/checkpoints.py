"""Distributed checkpoints that another layout can read: tensor, pipeline and data parallel sizes may all change.

megatron-core's ``torch_dist`` format holds each tensor under its global name and place. Two things are
not obvious: the distributed optimizer must be told ``fully_reshardable`` at every save and load (its default
fails in 0.16.1: "ShardedTensor.flattened_range is not supported"), and what stands beside the tensors must not be
taken from another structure of optimizers (moving.py).

Random states go into a file per rank (random_states.py), taken up where the layout is the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

from recipes import continuity, ranks
from recipes import resume as runs
from recipes.pretrain import moving, random_states, writers
from recipes.pretrain.model import Built
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import reshard, together


def write(plan: Plan, target: Path, built: Built, step: int, background: bool = False) -> Any:
    """Write the state to a fresh folder, every rank its share; what is in it is no checkpoint before it is committed.

    In the background it returns the library's request (``AsyncRequest``) when the state has been copied to host
    memory, for a queue to write out; else None, and all is written.
    """
    whole_parameters(built)
    writers.install()
    strategy = save_strategy()
    request = dist_checkpointing.save(
        _state(plan, built, step), str(target), strategy, None, async_sharded_save=background
    )
    return writers.in_background(request) if background else None


def zero_moments(built: Built) -> None:
    """Make the states that the optimizer would make in its first step, for a checkpoint of a run that begins."""
    for each in getattr(built.optimizer, "chained_optimizers", [built.optimizer]):
        if each.init_state_fn is not None:
            each.init_state_fn(each.optimizer, each.config)
        for group in each.optimizer.param_groups:
            group.setdefault("step", 0)


def whole_parameters(built: Built) -> None:
    """With overlapped parameter gathers a rank has only its own share of the last update until the next forward."""
    for chunk in built.chunks:
        if chunk.ddp_config.use_distributed_optimizer and chunk.ddp_config.overlap_param_gather:
            chunk.start_param_sync(force_sync=True)


def resume(plan: Plan, folder: Path, built: Built, data_sha256: str, durable: str = "") -> runs.Start | None:
    """Load the newest valid checkpoint of this experiment, whatever its degrees, if any. All ranks call it."""
    group = together.group()
    start = runs.find(plan, folder, group, durable)
    if start is None:
        return None
    ranks.everywhere(lambda: _require_data(plan, start, data_sha256), group)
    wanted = _state(plan, built, 0, loading=True)
    if start.route.kind == reshard.DISTRIBUTED:
        state = moving.load(wanted, start.path)
    else:
        state = dist_checkpointing.load(wanted, str(start.path), strict="raise_unexpected")
    for key, chunk in zip(keys(built.chunks), built.chunks, strict=True):
        chunk.module.load_state_dict(state[key])
    with torch.no_grad():
        built.optimizer.load_state_dict(state["optimizer"])
    if state["step"] != start.step:
        raise ToolkitError(
            f"{start.path} holds the state after step {state['step']}, its manifest says {start.step}",
            remedy="toolkit ckpt verify names damaged files; choose an older checkpoint",
        )
    counted = [int(group["step"]) for group in built.optimizer.param_groups if "step" in group]
    # steps that overflow under fp16 are not the optimizer's
    continuity.require_restored(start.step, counted if plan.workload.precision != "fp16" else (), None)
    if start.route.kind == reshard.PLAIN:
        random_states.load(start.path, group.rank)
    return start


def _require_data(plan: Plan, start: runs.Start, data_sha256: str) -> None:
    if start.facts.get("data_sha256", data_sha256) != data_sha256:
        raise ToolkitError(
            f"{start.path} was trained on other tokens than {plan.contract.dataset!r} now has",
            remedy="restore the data, or start anew in another --output-dir",
        )


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
