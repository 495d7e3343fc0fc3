"""Which tensors a dry run would hold in host memory: what the framework pins, and the optimizer's states beside it.

With no GPU everything lies on the CPU; but what is offloaded goes through the accelerator's ``pin_memory``, and the
states of an optimizer lie where its parameters lie.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from toolkit.verify.live import LiveBytes, local


class Pinned:
    """Notes storages of host memory, and has the counter of device memory leave them out."""

    def __init__(self) -> None:
        self.counter: LiveBytes | None = None
        self._storages: dict[int, weakref.ref[Any]] = {}

    def pin(self, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """In place of the accelerator's ``pin_memory``."""
        self.note([tensor])
        return tensor

    def note(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are in host memory."""
        for tensor in tensors:
            storage = local(tensor).untyped_storage()
            self._storages[storage._cdata] = weakref.ref(storage)
            if self.counter is not None:
                self.counter.ignore(storage)

    def leave_out(self, counter: LiveBytes) -> None:
        """Have a counter of device memory leave them out: those there are, and those to come."""
        self.counter = counter
        for reference in self._storages.values():
            storage = reference()
            if storage is not None:
                counter.ignore(storage)

    @property
    def keys(self) -> set[int]:
        """Of storages that are alive, as ``untyped_storage()._cdata``."""
        return {key for key, storage in self._storages.items() if storage() is not None}

    @property
    def bytes(self) -> int:
        """Of storages that are alive."""
        alive = [storage() for storage in self._storages.values()]
        return sum(storage.nbytes() for storage in alive if storage is not None)
