"""A real DeepSpeed engine at the plan's world size: ``python -m toolkit.verify.deepspeed PLAN KIND RANK ANSWER``.

The plan's own emitted configuration, transformers' model, fake tensors. Counted after the first optimizer step
has made the moments: parts from the engine's own attributes between two micro batches, then the peak of a whole step.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from toolkit.emit import deepspeed as emitted
from toolkit.errors import ToolkitError
from toolkit.estimate.partition import fullest_rank
from toolkit.plan import Plan
from toolkit.verify import job

if TYPE_CHECKING:
    from toolkit.verify.pinned import Pinned

FULLEST = "fullest rank"


def count(plan: Plan, kind: str, rank: int) -> job.Answer:
    """Bytes by part and collectives of one rank; ``kind`` "fullest rank" looks for the fullest partition."""
    from toolkit.verify.adapters import with_adapters
    from toolkit.verify.hugging_face import DTYPES, causal_model, configuration, require_runnable

    config = emitted.config(plan)  # refuses what DeepSpeed would
    require_runnable(plan)
    if plan.workload.precision == "fp8":
        raise ToolkitError("DeepSpeed runs no fp8", remedy="verify the plan with --precision bf16")
    if plan.strategy.tp > 1:
        raise ToolkitError("DeepSpeed's tensor parallelism is not dry-run", remedy="verify with --tp 1")
    shape, dtype = configuration(plan), DTYPES[plan.workload.precision]
    import torch

    if kind == FULLEST:
        with torch.device("meta"):
            bare = with_adapters(plan, causal_model(plan, shape, dtype))
        sizes = tuple(float(p.numel()) for p in bare.parameters() if p.dim() > 1 and p.requires_grad)
        rank = fullest_rank(sizes, plan.strategy.dp)
    from toolkit.verify.pinned import Pinned

    pinned = Pinned()
    deepspeed = _ready(rank, plan.strategy.dp, pinned)
    from toolkit.verify import fake
    from toolkit.verify.preference import frozen, is_preference, with_head

    with fake.tensors():
        keep = _tell_transformers(config) if is_preference(plan) else None  # alive, or it forgets

        def made() -> Any:
            sharded = deepspeed.zero.Init(config_dict_or_path=config) if plan.strategy.zero_stage == 3 else None
            with sharded or contextlib.nullcontext():
                return with_head(plan, causal_model(plan, shape, dtype))

        model = with_adapters(plan, made())
        model.to(dtype)
        apart = is_preference(plan) and plan.workload.method == "full"
        reference = _as_trl_prepares_it(plan, deepspeed, frozen(made()).to(dtype), config) if apart else None
        if plan.strategy.recompute == 2:
            model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        answer = _steps(plan, deepspeed, model, config, pinned, reference) | {"rank": rank}
        del keep
        return answer


def _tell_transformers(config: dict[str, Any]) -> Any:
    """What trl asks whether parameters are sharded."""
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    return HfDeepSpeedConfig(config)  # type: ignore[no-untyped-call]


def _as_trl_prepares_it(plan: Plan, deepspeed: Any, reference: Any, config: dict[str, Any]) -> Any:
    """An engine of stage 3 as the policy's, without an optimizer; else a whole copy (models/utils.py of trl 1.16.0)."""
    if plan.strategy.zero_stage != 3:
        return reference
    alone = {name: value for name, value in config.items() if name not in ("optimizer", "scheduler")}
    engine, *_ = deepspeed.initialize(model=reference, config=alone)
    engine.eval()
    return engine


def _ready(rank: int, world_size: int, pinned: Pinned) -> Any:
    """The library, with its group made and no compiled operator asked for."""
    from toolkit.verify import fake
    from toolkit.verify.hugging_face import DTYPES

    fake.process_group(rank, world_size)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    accelerator = deepspeed.get_accelerator()
    accelerator.pin_memory = pinned.pin
    accelerator.is_fp16_supported = lambda: True  # a dry run computes nothing
    accelerator.supported_dtypes = lambda: list(DTYPES.values())
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
    import deepspeed.runtime.zero.partition_parameters as partitions
    import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator
    import deepspeed.runtime.zero.stage3 as stage3

    for module in (partitions, coordinator, stage3):
        if hasattr(module, "assert_ints_same_as_other_ranks"):
            module.assert_ints_same_as_other_ranks = lambda *_, **__: None
    return deepspeed


def _steps(
    plan: Plan, deepspeed: Any, model: Any, config: dict[str, Any], pinned: Pinned, reference: Any
) -> job.Answer:
    import torch

    from toolkit.verify.audit import bytes_by_part, holders, states
    from toolkit.verify.hugging_face import adamw, parameter_groups
    from toolkit.verify.live import LiveBytes
    from toolkit.verify.preference import loss_of, rows

    loss_on = loss_of(plan, model, reference)
    optimizer = adamw(plan, parameter_groups(model, plan.contract.weight_decay))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    del model
    work, micro_batches = plan.workload, plan.strategy.gradient_accumulation_steps
    counter, between = LiveBytes(), dict[str, int]()
    for step in range(2):
        with counter if step else contextlib.nullcontext():
            if step:
                for tensors in (*holders(engine).values(), _shards(reference)):
                    counter.hold(tensors)
                if plan.strategy.offload:
                    pinned.note(states(engine))
                    pinned.leave_out(counter)
                counter.reset()
            for micro_batch in range(micro_batches):
                tokens = torch.zeros((rows(plan), work.sequence_length), dtype=torch.long)
                engine.backward(loss_on(engine, tokens))
                if micro_batch == max(0, micro_batches - 2):
                    on_host = pinned.keys if plan.strategy.offload else set()
                    parts = holders(engine) | {"reference": _shards(reference)}
                    between = bytes_by_part(parts, on_host) | {"host": pinned.bytes}
                engine.step()
    return {
        "counted_bytes": {name: between[name] for name in ("parameters", "gradients", "optimizer", "reference")}
        | {"peak": counter.peak}
        | ({"host": between["host"]} if plan.strategy.offload else {}),
        "other_bytes": {name: between[name] for name in ("buckets", "secondary", "gathered")},
        "collectives": counter.sent(),
    }


def _shards(reference: Any) -> list[Any]:
    """What this rank holds of a reference all the time."""
    parameters = list(reference.parameters()) if reference is not None else []
    return [getattr(parameter, "ds_tensor", parameter) for parameter in parameters]


if __name__ == "__main__":
    sys.exit(job.main(count, sys.argv[1:]))
