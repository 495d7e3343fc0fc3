"""Calibration: the few physical coefficients that estimates need beyond data sheets.

Every coefficient is a row of ``data/calibration/*.toml`` with its value, unit, meaning, plausible range, and whether
it was fitted (on which runs, with what error), measured on a machine, or is assumed.
"""

from __future__ import annotations

import msgspec

STATUSES = ("assumed", "fitted", "measured")


class Coefficient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number with its meaning. A ``standard_error`` of 0 is an error that nobody knows."""

    value: float
    unit: str
    meaning: str
    low: float
    high: float
    status: str = "assumed"  # assumed | fitted | measured
    source: str = ""
    standard_error: float = 0.0  # in the unit: over fits that leave out one source each
    runs: int = 0  # that it was fitted on, those that it moves
    sources: tuple[str, ...] = ()  # of those runs


class MeasuredLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What collectives reached over one link: bytes/s that each rank sends, and seconds to start one."""

    ring_bytes_per_second: float  # all-gather, reduce-scatter
    all_reduce_bytes_per_second: float
    start_seconds: float
    ranks: int = 2


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of kernels measured on one machine; they replace the files' figures of this accelerator and its links.

    ``matmul_flop_per_second`` and ``launch_seconds`` are the line of T1 through products of many sizes.
    ``memory_bytes_per_second`` is not the reached rate but what a data sheet would have to say for ``memory_fraction``
    to give it; 0: the data sheet is near enough, and ``memory_fraction`` is the measured one.
    """

    accelerator: str
    source: str
    matmul_flop_per_second: dict[str, float] = {}
    launch_seconds: float = 0.0
    memory_bytes_per_second: float = 0.0
    links: dict[str, MeasuredLink] = {}


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named set of coefficients. ``calibration["context_bytes"]`` is the value."""

    name: str
    summary: str
    coefficients: dict[str, Coefficient]
    machine: Machine | None = None
    path: str = ""  # of the file, where it was named by its path

    def __getitem__(self, name: str) -> float:
        return self.coefficients[name].value

    @property
    def reference(self) -> str:
        """What finds it again: its path where it was given by that, else its name."""
        return self.path or self.name

    @property
    def note(self) -> str:
        """A sentence for whoever reads an estimate: which calibration it is, and how much of it nobody measured."""
        rows = self.coefficients.values()
        count = {status: sum(row.status == status for row in rows) for status in STATUSES}
        measured = f"{count['measured']} were" if count["measured"] else "none was"
        return (
            f"calibration '{self.reference}': {count['assumed']} of {len(rows)} coefficients are assumed, "
            f"{count['fitted']} fitted on published runs, {measured} measured on your machine"
        )

    def with_values(self, values: dict[str, float]) -> Calibration:
        """The same with other values for some coefficients."""
        changed = {name: msgspec.structs.replace(self.coefficients[name], value=each) for name, each in values.items()}
        return msgspec.structs.replace(self, coefficients=self.coefficients | changed)
