"""PyTorch's DistributedDataParallel at the plan's world size: ``python -m toolkit.verify.ddp PLAN KIND RANK ANSWER``.

As accelerate prepares it: float32 parameters under autocast, default buckets. transformers' model, fake tensors.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.verify import job


def count(plan: Plan, kind: str, rank: int) -> job.Answer:
    """Bytes by part and collectives of one rank."""
    from toolkit.verify.adapters import with_adapters
    from toolkit.verify.hugging_face import DTYPES, causal_model, configuration, require_runnable

    require_runnable(plan)
    if plan.workload.precision not in DTYPES:
        raise ToolkitError(f"DDP runs no {plan.workload.precision}", remedy="verify the plan with --precision bf16")
    import torch

    from toolkit.verify import fake
    from toolkit.verify.preference import frozen, is_preference, with_head

    shape, s = configuration(plan), plan.strategy
    fake.process_group(rank, s.dp)
    with fake.tensors():
        dtype = torch.float32 if plan.workload.method == "full" else DTYPES[plan.workload.precision]
        model = with_adapters(plan, with_head(plan, causal_model(plan, shape, dtype)))
        apart = is_preference(plan) and plan.workload.method == "full"
        reference = frozen(with_head(plan, causal_model(plan, shape, dtype))) if apart else None
        if s.recompute == 2:
            model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        buckets: list[torch.Tensor] = []
        wrapped = _wrapped(model, buckets) if s.dp > 1 else model
        return _steps(plan, wrapped, buckets, model, reference) | {"rank": rank}


def _wrapped(model: Any, buckets: list[Any]) -> Any:
    """The library's wrapper, with a hook that reduces a bucket in place as the built-in one does.

    The fake group's work has no result for the built-in one. Looking for unused parameters keeps the library from
    building its buckets a second time, in another order and of the same size, with real tensors.
    """
    import torch

    def reduce(_: Any, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations of hooks
        buffer = bucket.buffer()
        buckets.append(buffer)
        torch.distributed.all_reduce(buffer)
        done: Any = torch.futures.Future()
        done.set_result(buffer)
        return done

    wrapped: Any = torch.nn.parallel.DistributedDataParallel(model, init_sync=False, find_unused_parameters=True)
    wrapped.register_comm_hook(None, reduce)
    return wrapped


def _steps(plan: Plan, model: Any, buckets: list[Any], policy: Any, reference: Any) -> job.Answer:
    import torch

    from toolkit.verify.audit import bytes_by_part
    from toolkit.verify.hugging_face import DTYPES, adamw, parameter_groups
    from toolkit.verify.live import LiveBytes
    from toolkit.verify.preference import loss_of, rows

    loss_on = loss_of(plan, policy, reference)
    optimizer = adamw(plan, parameter_groups(model, plan.contract.weight_decay))
    work, micro_batches = plan.workload, plan.strategy.gradient_accumulation_steps
    half = work.precision != "fp32"

    def holders() -> dict[str, list[torch.Tensor]]:
        parameters = list(model.parameters())
        return {
            "parameters": parameters,
            "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
            "optimizer": [value for state in optimizer.state.values() for value in state.values()],
            "reference": list(reference.parameters()) if reference is not None else [],
        }

    counter, between = LiveBytes(), dict[str, int]()
    for step in range(2):
        with counter if step else contextlib.nullcontext():
            if step:
                for tensors in (*holders().values(), buckets):
                    counter.hold(tensors)
                counter.reset()
            for micro_batch in range(micro_batches):
                tokens = torch.zeros((rows(plan), work.sequence_length), dtype=torch.long)
                last = micro_batch == micro_batches - 1
                silent = contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()
                with silent:
                    with torch.autocast("cpu", DTYPES[work.precision], enabled=half):
                        loss = loss_on(model, tokens)
                    loss.backward()
                if micro_batch == max(0, micro_batches - 2):
                    between = bytes_by_part(holders())
            optimizer.step()
            optimizer.zero_grad()
    return {"counted_bytes": between | {"peak": counter.peak}, "collectives": counter.sent()}


if __name__ == "__main__":
    sys.exit(job.main(count, sys.argv[1:]))
