"""What the ranks of a run do together: wait, share what the first one found, and leave."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from toolkit.errors import Problem, ToolkitError

Result = TypeVar("Result")


def several() -> bool:
    """Whether there is a process group of more than one rank."""
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def barrier() -> None:
    """Wait for all ranks, where there are several."""
    if several():
        from torch import distributed

        distributed.barrier()


def on_first_rank(function: Callable[[], Result], rank: int) -> Result:
    """Run a function on rank 0 and return its result on every rank.

    A ToolkitError is raised on every rank too: a rank that failed alone would leave the others waiting.
    """
    shared: list[tuple[tuple[Problem, ...], Result | None]] = [((), None)]
    if rank == 0:
        try:
            shared = [((), function())]
        except ToolkitError as error:
            shared = [(error.problems, None)]
    if several():
        from torch import distributed

        distributed.broadcast_object_list(shared, src=0)
    problems, result = shared[0]
    if problems:
        raise ToolkitError(*problems)
    return result  # type: ignore[return-value]


def leave() -> None:
    """End the process group: a process that exits with it alive can abort after a successful run."""
    if "torch" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
