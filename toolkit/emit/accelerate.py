"""The YAML of ``accelerate launch`` (1.15): how many processes, and which engine wraps the model."""

from __future__ import annotations

from typing import Any

from toolkit.emit import yaml
from toolkit.emit.refusals import require_data_parallel, require_layout
from toolkit.errors import Problems, ToolkitError
from toolkit.plan import Plan
from toolkit.strategy import OFFLOAD, RECOMPUTE

Config = dict[str, Any]


def config(plan: Plan, deepspeed_config_file: str = "ds_config.json") -> Config:
    """The keys of accelerate's own ``ClusterConfig``.

    DeepSpeed: the file only. accelerate refuses a second statement of what a DeepSpeed file says
    (accumulation, clipping, stage, offload, 16-bit saving, mixed precision), so none is here; several nodes
    need the ``standard`` launcher, or accelerate would look for pdsh and a hostfile. FSDP: version 2, with
    ``parallelism_config`` for hybrid sharding. DDP on processors is ``MULTI_GPU`` with ``use_cpu``, because
    accelerate starts a single process for ``MULTI_CPU`` unless mpirun is there. With several nodes the
    caller adds ``--machine_rank`` and ``--main_process_ip``.

    Source: accelerate 1.15.0 ``commands/config/config_args.py``, ``commands/launch.py``,
    ``utils/dataclasses.py``, ``state.py``. Raises ToolkitError for Megatron (accelerate does not start
    it) and for FSDP on processors (accelerate runs plain DDP there and does not say so).
    """
    _require(plan)
    strategy, cluster = plan.strategy, plan.cluster
    cpu = cluster.accelerator.is_cpu
    values: Config = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": _distributed_type(plan),
        "machine_rank": 0,
        "main_training_function": "main",
        "num_machines": cluster.nodes,
        "num_processes": cluster.num_gpus,
        "rdzv_backend": "static" if cluster.nodes == 1 else "c10d",
        "same_network": cluster.nodes == 1,
        "use_cpu": cpu,
    }
    if strategy.framework == "deepspeed":
        values["deepspeed_config"] = {"deepspeed_config_file": deepspeed_config_file}
        if cluster.nodes > 1:
            values["deepspeed_config"]["deepspeed_multinode_launcher"] = "standard"
        return values
    precision = plan.workload.precision
    values["mixed_precision"] = "no" if precision == "fp32" else precision
    if strategy.framework == "fsdp":
        values["fsdp_config"] = _fsdp(plan)
        if strategy.dp_shard != strategy.dp:
            values["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": strategy.dp // strategy.dp_shard,
                "parallelism_config_dp_shard_size": strategy.dp_shard,
            }
    return values


def text(plan: Plan, deepspeed_config_file: str = "ds_config.json") -> str:
    """``accelerate.yaml``."""
    return yaml.dump(config(plan, deepspeed_config_file))


def _require(plan: Plan) -> None:
    strategy = plan.strategy
    if strategy.framework == "megatron":
        raise ToolkitError("accelerate does not start Megatron plans", remedy="use launch.sh or train.sbatch")
    with Problems() as problems:
        require_layout(problems, plan)
        require_data_parallel(problems, plan)
        if strategy.framework != "fsdp":
            return
        if plan.cluster.accelerator.is_cpu:
            problems.add("FSDP on processors: accelerate 1.15 runs plain DDP instead, silently", "use deepspeed")
        if strategy.dp % max(1, strategy.dp_shard):
            problems.add(
                f"a sharding group of {strategy.dp_shard} does not divide dp {strategy.dp}",
                "use the GPUs of one node, or all",
            )
        if strategy.zero_stage not in (2, 3):
            problems.add(f"FSDP with ZeRO stage {strategy.zero_stage} cannot be written", "use --zero 3")
        if OFFLOAD[strategy.offload] == "optimizer":
            problems.add("FSDP moves parameters and optimizer to the host together or not at all", "use deepspeed")


def _distributed_type(plan: Plan) -> str:
    if plan.strategy.framework == "ddp":
        return "MULTI_GPU" if plan.cluster.num_gpus > 1 else "NO"
    return {"deepspeed": "DEEPSPEED", "fsdp": "FSDP"}[plan.strategy.framework]


def _fsdp(plan: Plan) -> Config:
    strategy = plan.strategy
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": strategy.zero_stage == 3,
        "fsdp_offload_params": OFFLOAD[strategy.offload] == "optimizer+parameters",
        "fsdp_activation_checkpointing": RECOMPUTE[strategy.recompute] == "full",
        # a full state on rank 0 at every save would need the memory of the whole model
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
