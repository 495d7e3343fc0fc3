"""Which checkpoints stay: the newest few, and one of every so many steps for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Key = TypeVar("Key")


def doomed(steps: Iterable[tuple[Key, int]], keep: int = 2, keep_every: int = 0) -> list[Key]:
    """Which of the valid checkpoints can go, oldest first.

    Args:
        steps: a key (its path) and the step of each *valid* checkpoint, in any order. A path that comes twice
            counts once: a save at the last step that is also an interval must not push itself out.
        keep: how many of the newest stay, 1 at least; with 2 or more, one that turns out to be damaged
            costs one interval and not the run.
        keep_every: those whose step is a multiple of it stay for good; 0: none for that reason.

    """
    ordered = sorted(dict(steps).items(), key=lambda pair: pair[1])
    old = ordered[: -max(1, keep)]
    return [key for key, step in old if keep_every <= 0 or step % keep_every]


def looked_at(
    found: Sequence[tuple[Key, int]], is_valid: Callable[[Key], bool], keep: int = 2, keep_every: int = 0
) -> list[tuple[Key, int]]:
    """The valid ones of ``found`` (oldest first) among which :func:`doomed` finds all that can go.

    The newest ``keep`` and those that are no multiple of ``keep_every``: whether one is valid takes a look at each of
    its files, and of those that stay for good a long run has thousands.
    """
    valid: list[tuple[Key, int]] = []
    for key, step in reversed(found):
        if (len(valid) < max(1, keep) or keep_every <= 0 or step % keep_every) and is_valid(key):
            valid.append((key, step))
    return valid[::-1]
