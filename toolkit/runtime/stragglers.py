"""Which ranks fall behind, from what each has spent by itself: all the others only wait for them in collectives.

Once per window of steps every rank tells its mean seconds a step in each section that holds no collective. A rank is
slow there in this window where

    own > f * median of the others     and     own - median of the others > 0.05 * seconds of a step

and is reported once it was in ``w`` windows in a row. Ranks are compared with those that have the same work (one stage
of a pipeline). Of ``products``, a fixed product of matrices, a step has none: there the first condition decides.

The same idea as megatron-core's ``StragglerDetector`` (``core/utils.py``), which times reading and forward with events
and logs the fastest and slowest rank; here the rank is told by itself, with its host.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

DATA, FORWARD, PRODUCTS = "data", "forward", "products"
LEAST_SHARE = 0.05  # of a step


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """``every`` is the steps of a window, 0 for none."""

    every: int = 20
    factor: float = 1.5
    windows: int = 3


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank tells of a window: mean seconds a step by section, and of whole steps."""

    work: int  # ranks with the same number do the same
    step_seconds: float
    sections: dict[str, float]


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that has been slow for long enough."""

    rank: int
    section: str
    seconds: float
    others: float  # their median


class Stragglers:
    """Remembers for how many windows each rank has been slow in each section."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._streaks: dict[tuple[int, str], int] = {}

    def window(self, told: Sequence[Told]) -> list[Slow]:
        """Those whose last ``windows`` windows, this one included, were the first in a row that were slow."""
        slow = {(each.rank, each.section): each for each in _slow(told, self.rules.factor)}
        self._streaks = {key: self._streaks.get(key, 0) + 1 for key in slow}
        return [slow[key] for key, streak in self._streaks.items() if streak == self.rules.windows]


def _slow(told: Sequence[Told], factor: float) -> list[Slow]:
    found = []
    for rank, own in enumerate(told):
        peers = [each for other, each in enumerate(told) if other != rank and each.work == own.work]
        for section, seconds in own.sections.items():
            if not peers:
                continue
            others = statistics.median(each.sections[section] for each in peers)
            shown = section == PRODUCTS or seconds - others > LEAST_SHARE * own.step_seconds
            if seconds > factor * others and shown:
                found.append(Slow(rank=rank, section=section, seconds=seconds, others=others))
    return found
