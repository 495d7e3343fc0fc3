"""Batches, and the seconds that each took to read: one way to time them, for whoever keeps the sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def timed(batches: Iterator[Item], spent: Callable[[float], None]) -> Iterator[Item]:
    """The same batches; ``spent`` is told the seconds of each reading, and of the one that finds the end."""
    while True:
        since = time.perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            spent(time.perf_counter() - since)
        yield batch
