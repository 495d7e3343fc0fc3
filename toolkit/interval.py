"""Interval: how far a prediction may lie from the truth, and the measured runs that say so."""

from __future__ import annotations

import msgspec

LEVEL = 0.8  # share of comparable runs that an interval is made to hold


class Comparable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run of one source that is most like the job. ``distance`` 1 is another generation of accelerators, a
    mixture of experts instead of a dense model, or ten times the parameters.
    """

    id: str
    source: str
    distance: float


class Interval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An 80 % interval around one prediction, in the prediction's unit.

    It is made of the residuals of comparable runs, and wider the farther the job is from the nearest of them. It says
    how wrong the model is found to be; ``lower_seconds`` and ``upper_seconds`` of a step bound what may overlap.
    """

    low: float
    high: float
    distance: float  # to the nearest run
    based_on: tuple[Comparable, ...]  # nearest first, one for each source

    @property
    def is_extrapolated(self) -> bool:
        """Whether nothing within a distance of 1 was measured."""
        return self.distance > 1.0
