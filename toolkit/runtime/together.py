"""How the ranks of a run talk about a checkpoint: one operation, ``share``, which all of them call together."""

from __future__ import annotations

import datetime
import platform
import sys
from typing import Any, Protocol

# How long a rank waits for one that has more to hash, delete or copy: a copy may take hours, and torch's own 30 minutes
# would end the run for it. Who is gone closes its connections, and a hang is the watchdog's to see.
PATIENCE = datetime.timedelta(days=7)


class Group(Protocol):
    """Ranks 0 to ``size - 1``; ``hosts`` names the machine of each."""

    rank: int
    size: int
    hosts: list[str]

    def share(self, value: Any) -> list[Any]:
        """What each rank gave, in the order of ranks; nobody gets it before all have given."""


class Alone:
    """A group of one."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.hosts = [platform.node()]

    def share(self, value: Any) -> list[Any]:
        """Itself."""
        return [value]


class TorchGroup:
    """All ranks of ``torch.distributed``, over gloo whatever the gradients travel by: nothing is put on a GPU.

    ``own``: with connections of its own, so that a thread can talk while training does.
    """

    def __init__(self, own: bool = False) -> None:
        from torch import distributed

        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        same = distributed.get_backend() == "gloo" and not own
        self._group = None if same else distributed.new_group(backend="gloo", timeout=PATIENCE)
        self.hosts: list[str] = self.share(platform.node())

    def share(self, value: Any) -> list[Any]:
        """Gathered as pickled objects."""
        from torch import distributed

        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, value, group=self._group)
        return found


def group(own: bool = False) -> Group:
    """The ranks of this process's torch group, which all must ask for together, or itself alone."""
    distributed = sys.modules.get("torch.distributed")  # not imported: there is no group
    if distributed and distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return TorchGroup(own)
    return Alone()


ALONE = Alone()
