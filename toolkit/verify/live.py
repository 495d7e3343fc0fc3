"""Counts bytes of live storages, and collectives, while a framework runs on fake tensors.

A storage is alive from the operation that makes it until it is collected or resized to nothing (FSDP2 frees
gathered parameters that way). torch's own ``MemTracker`` refuses a module that is called once for each micro
batch, and calls ``module.buffers()``, which megatron-core's wrapper shadows with a list. Not counted: what an
operation allocates and frees inside itself (workspaces), and everything outside torch's allocator.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# rounds of (n - 1)/n of the whole that a rank sends in a ring of n; other operations send it once
RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
# operator of torch's c10d: (our name, which argument holds the whole)
OPERATIONS = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "reduce_": ("reduce", 0),
    "broadcast_": ("broadcast", 0),
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("send", 0),
}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that this rank holds; any other tensor itself."""
    found: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def ring_bytes(operation: str, ranks: int, size: int) -> float:
    """What each of ``n`` ranks sends: ``2 (n - 1)/n`` of the whole in an all-reduce, ``(n - 1)/n`` in a gather."""
    if operation not in RING:
        return float(size)
    return RING[operation] * (ranks - 1.0) / ranks * size


def _most(entry: tuple[Any, list[int]]) -> int:
    return -entry[1][1]


def _is_group(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Enter it above the fake tensor mode. ``current`` and ``peak`` are bytes; ``collectives`` what was sent."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = 0
        self.peak = 0
        self.collectives: dict[tuple[str, int, int, str], list[int]] = {}
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}

    def ignore(self, storage: torch.UntypedStorage) -> None:
        """Leave out a storage that is not on the device, from now on."""
        self._drop(storage._cdata)
        self._live[storage._cdata] = (weakref.ref(storage, functools.partial(self._gone, storage._cdata)), 0)

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count storages that were made before this mode was entered."""
        for tensor in tensors:
            self._add(local(tensor).untyped_storage())

    def reset(self) -> None:
        """Start a new peak from what is alive now, and forget the collectives."""
        self.peak = self.current
        self.collectives = {}

    def __enter__(self) -> LiveBytes:
        self._resize = torch.UntypedStorage.resize_
        resize, this = self._resize, self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in this._live:
                this._drop(storage._cdata)
            this._add(storage)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # let it become operations on local tensors, which come back here
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            self._collective(func._schema.name.rpartition(":")[2], args)
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._add(value.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._live:
            return
        size = storage.nbytes()
        self.current += size
        self.peak = max(self.peak, self.current)
        self._live[key] = (weakref.ref(storage, functools.partial(self._gone, key)), size)

    def _gone(self, key: int, _: Any) -> None:
        self._drop(key)

    def _drop(self, key: int) -> None:
        found = self._live.pop(key, None)
        if found is not None:
            self.current -= found[1]

    def _collective(self, name: str, args: Any) -> None:
        if name not in OPERATIONS:
            return
        operation, place = OPERATIONS[name]
        tensors = [value for value in tree_leaves(args[place]) if isinstance(value, torch.Tensor)]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        group = next((dist.ProcessGroup.unbox(value) for value in args if _is_group(value)), None)
        members = dist.get_process_group_ranks(group) if group is not None else [0]
        stride = members[1] - members[0] if len(members) > 1 else 0
        key = (operation, len(members), stride, str(tensors[0].dtype).removeprefix("torch."))
        entry = self.collectives.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += size

    def sent(self) -> list[dict[str, Any]]:
        """Collectives since the last reset: calls, bytes, and bytes a rank sends by the ring algorithms."""
        return [
            {
                "operation": operation,
                "ranks": ranks,
                "stride": stride,
                "dtype": dtype,
                "calls": calls,
                "bytes": size,
                "sent_bytes": ring_bytes(operation, ranks, size),
            }
            for (operation, ranks, stride, dtype), (calls, size) in sorted(self.collectives.items(), key=_most)
        ]
