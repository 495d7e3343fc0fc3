"""What lets a framework run in one process at any world size: a fake process group, fake tensors, small patches.

For dry runs only, in a process of their own: the patches are not undone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

COALESCED = ("allreduce_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_")


def process_group(rank: int, world_size: int) -> None:
    """The default group: collectives return at once and move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.pop("LOCAL_SIZE", None)  # DeepSpeed would wait for peers in shared memory
    place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in place.items()})
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    dist.all_gather_object = _gather_own  # type: ignore[assignment]  # objects need real bytes


def _gather_own(found: list[Any], value: Any, group: Any = None) -> None:
    found[:] = [value] * len(found)


@contextlib.contextmanager
def tensors() -> Iterator[FakeTensorMode]:
    """Fake tensors with what a training step asks of values: numbers are 1, counts 0, conditions false."""
    table: Any = fake_impls.op_implementations_dict
    table[torch.ops.aten._local_scalar_dense.default] = lambda mode, func, tensor: (
        1.0 if tensor.dtype.is_floating_point else 0
    )
    table[torch.ops.aten.is_nonzero.default] = lambda mode, func, tensor: False
    from torch.distributed import _meta_registrations

    work: Any = _meta_registrations.create_fakework

    for name in COALESCED:  # torch gives the others their form for fake tensors
        operator = getattr(torch.ops.c10d, name).default
        table[operator] = lambda mode, func, *args, **_: work(args, return_first_arg=False)
    torch.nn.Module._apply = _apply  # type: ignore[method-assign, assignment]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def _apply(module: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
    """``Module._apply`` that makes new parameters: fake tensors cannot be swapped in place."""
    for child in module.children():
        child._apply(function)  # type: ignore[no-untyped-call]
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            new = function(parameter)
        if new is not parameter and (new.dtype != parameter.dtype or new.device != parameter.device):
            module._parameters[name] = torch.nn.Parameter(new, requires_grad=parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


class FlashAttention(torch.autograd.Function):
    """Keeps what flash attention keeps: queries, keys, values, the result, and one float32 per head and token."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> torch.Tensor:
        """Any layout of query; the result is as wide as the values, per query head."""
        result: torch.Tensor = query.new_empty((*query.shape[:-1], value.shape[-1]))
        statistics = torch.empty(query.numel() // query.shape[-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, result, statistics)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Gradients of the three."""
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class FusedNorm(torch.autograd.Function):
    """Keeps what a fused norm keeps: its input and its weights; a view of a larger tensor is copied first.

    Source: transformer_engine ``pytorch/ops/basic/rmsnorm.py`` (``input_.contiguous()``).
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """A tensor like the input."""
        value = value.contiguous()
        ctx.save_for_backward(value, *weights)
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        """Gradients of input and weights."""
        return tuple(torch.empty_like(saved) for saved in ctx.saved_tensors)
