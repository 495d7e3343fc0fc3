"""What torch, transformers, accelerate and DeepSpeed must be told before a run."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

from recipes.finetune import checks, compiled, fsdp_on_cpu
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime.telemetry import wandb_reporting


def environment(plan: Plan, folder: Path) -> list[str]:
    """Set what the libraries read at import; returns where to report to."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if plan.strategy.framework == "deepspeed" and "RANK" not in os.environ:  # started without torchrun
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    if checks.is_cpu(plan):
        os.environ["DS_ACCELERATOR"] = "cpu"
    rank = int(os.environ.get("RANK", "0"))
    if not wandb_reporting(folder, os.environ, rank):
        return []
    if importlib.util.find_spec("wandb") is None:
        if rank == 0:
            print("WANDB_ variables are set, and wandb is not installed: nothing is reported", flush=True)
        return []
    return ["wandb"]


def prepare(plan: Plan) -> None:
    """Quiet what says nothing about the run, and make them do on processors what they do on GPUs."""
    import torch
    from transformers.utils import logging as transformers_logging

    if os.environ.get("RANK", "0") == "0":
        transformers_logging.set_verbosity_warning()
    else:
        transformers_logging.set_verbosity_error()  # rank 0 says it for all
    transformers_logging.disable_progress_bar()
    # said by every rank at every start, and no fault of the run: the Trainer counts micro batches itself and tells
    # accelerate 1
    logging.getLogger("accelerate.accelerator").addFilter(
        lambda entry: "Gradient accumulation steps mismatch" not in entry.getMessage()
    )
    # of save_steps, eval_steps and the micro batch that a run goes on with: those of this start hold (OwnIntervals)
    logging.getLogger("transformers.trainer_utils").addFilter(
        lambda entry: "do not match the ones in the `trainer_state.json`" not in entry.getMessage()
    )
    # of a run that goes on with other ranks: nothing here is tensor parallel, so that there is no such unit
    logging.getLogger("DeepSpeed").addFilter(lambda entry: "MPU is not provided" not in entry.getMessage())
    if not checks.is_cpu(plan) and not torch.cuda.is_available():
        raise ToolkitError(
            f"the plan is for {plan.cluster.accelerator.name}, torch finds no GPU on this machine",
            remedy="start it on such a machine, or plan for this one with --cluster local-cpu",
        )
    if plan.strategy.framework == "deepspeed":
        compiled.locks_end_with_their_process()
    if plan.strategy.framework == "fsdp" and checks.is_cpu(plan):
        fsdp_on_cpu.switch_on()
    if plan.strategy.framework == "deepspeed" and checks.is_cpu(plan):
        import deepspeed

        # compiled at the first use on every machine, not needed, and a killed compilation blocks all later ones
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def hybrid_sharding(plan: Plan) -> dict[str, Any]:
    """FSDP that shards inside groups of ``dp_shard`` ranks and replicates between them."""
    strategy = plan.strategy
    if strategy.framework != "fsdp" or strategy.dp_shard in (1, strategy.dp):
        return {}
    from accelerate.parallelism_config import ParallelismConfig

    replicas = strategy.dp // strategy.dp_shard
    return {"parallelism_config": ParallelismConfig(dp_replicate_size=replicas, dp_shard_size=strategy.dp_shard)}
