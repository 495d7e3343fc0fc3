"""What the ranks of a run do together: wait, share what the first one found, and leave."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from toolkit.errors import Problem, ToolkitError
from toolkit.runtime.together import Group

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


def shared(function: Callable[[], Result], group: Group) -> Result:
    """What the function gives on the first rank of a group, on all of them; a ToolkitError of it is raised on all."""
    problems: tuple[Problem, ...] = ()
    result: Result | None = None
    if group.rank == 0:
        try:
            result = function()
        except ToolkitError as error:
            problems = error.problems
    problems, result = group.share((problems, result))[0]
    if problems:
        raise ToolkitError(*problems)
    return result  # type: ignore[return-value]


def everywhere(function: Callable[[], None], group: Group) -> None:
    """Run a function on every rank of a group; a ToolkitError of any is raised on all, each problem once."""
    problems: tuple[Problem, ...] = ()
    try:
        function()
    except ToolkitError as error:
        problems = error.problems
    found = dict.fromkeys(problem for each in group.share(problems) for problem in each)
    if found:
        raise ToolkitError(*found)


def leave() -> None:
    """End the process group: a process that exits with it alive can abort after a successful run."""
    if "torch" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
