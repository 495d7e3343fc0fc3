"""A real DeepSpeed engine at the plan's world size: ``python -m toolkit.verify.deepspeed PLAN KIND RANK ANSWER``.

The plan's own emitted configuration, transformers' model, fake tensors. Counted after the first optimizer step
has made the moments: parts from the engine's own attributes between two micro batches, then the peak of a whole step.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from toolkit.emit import deepspeed as emitted
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.verify import job

GPU_ONLY = ("fp16", "fp8")
FULLEST = "fullest rank"


def count(plan: Plan, kind: str, rank: int) -> job.Answer:
    """Bytes by part and collectives of one rank; ``kind`` "fullest rank" looks for the fullest partition."""
    from toolkit.verify.hugging_face import DTYPES, causal_model, configuration, require_whole_training

    config = emitted.config(plan)  # refuses what DeepSpeed would
    require_whole_training(plan)
    if plan.workload.precision in GPU_ONLY:
        raise ToolkitError(
            f"DeepSpeed runs no {plan.workload.precision} without a GPU", remedy="verify the plan with --precision bf16"
        )
    if plan.strategy.tp > 1:
        raise ToolkitError("DeepSpeed's tensor parallelism is not dry-run", remedy="verify with --tp 1")
    shape, dtype = configuration(plan), DTYPES[plan.workload.precision]
    import torch

    if kind == FULLEST:
        with torch.device("meta"):
            sizes = [p.numel() for p in causal_model(plan, shape, dtype).parameters() if p.dim() > 1]
        rank = fullest_rank(sizes, plan.strategy.dp)
    deepspeed = _ready(rank, plan.strategy.dp)
    from toolkit.verify import fake

    with fake.tensors():
        sharded = deepspeed.zero.Init(config_dict_or_path=config) if plan.strategy.zero_stage == 3 else None
        with sharded or contextlib.nullcontext():
            model = causal_model(plan, shape, dtype)
        model.to(dtype)
        if plan.strategy.recompute == 2:
            model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        return _steps(plan, deepspeed, model, config) | {"rank": rank}


def fullest_rank(sizes: list[int], ranks: int) -> int:
    """The rank whose partition of the flat parameters is touched by the most elements of whole tensors."""
    share = -(-sum(sizes) // ranks)
    held = [0] * ranks
    start = 0
    for size in sizes:
        for rank in range(start // share, (start + size - 1) // share + 1):
            held[rank] += size
        start += size
    return held.index(max(held))


def _ready(rank: int, world_size: int) -> Any:
    """The library, with its group made and no compiled operator asked for."""
    from toolkit.verify import fake

    fake.process_group(rank, world_size)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
    import deepspeed.runtime.zero.partition_parameters as partitions
    import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator
    import deepspeed.runtime.zero.stage3 as stage3

    for module in (partitions, coordinator, stage3):
        if hasattr(module, "assert_ints_same_as_other_ranks"):
            module.assert_ints_same_as_other_ranks = lambda *_, **__: None
    return deepspeed


def _steps(plan: Plan, deepspeed: Any, model: Any, config: dict[str, Any]) -> job.Answer:
    import torch

    from toolkit.verify.audit import bytes_by_part, holders
    from toolkit.verify.hugging_face import parameter_groups
    from toolkit.verify.live import LiveBytes

    optimizer = torch.optim.AdamW(parameter_groups(model, plan.contract.weight_decay), lr=1e-4, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    del model
    work, micro_batches = plan.workload, plan.strategy.gradient_accumulation_steps
    counter, between = LiveBytes(), {}
    for step in range(2):
        with counter if step else contextlib.nullcontext():
            if step:
                for tensors in holders(engine).values():
                    counter.hold(tensors)
                counter.reset()
            for micro_batch in range(micro_batches):
                tokens = torch.zeros((plan.strategy.micro_batch_size, work.sequence_length), dtype=torch.long)
                engine.backward(engine(input_ids=tokens, labels=tokens).loss)
                if micro_batch == max(0, micro_batches - 2):
                    between = bytes_by_part(holders(engine))
                engine.step()
    return {
        "counted_bytes": {name: between[name] for name in ("parameters", "gradients", "optimizer")}
        | {"peak": counter.peak},
        "other_bytes": {name: between[name] for name in ("buckets", "secondary", "gathered")},
        "collectives": counter.sent(),
    }


if __name__ == "__main__":
    sys.exit(job.main(count, sys.argv[1:]))
