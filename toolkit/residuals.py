"""Residuals of measured runs: the table that intervals are read from, as ``data/residuals/*.json`` holds it."""

from __future__ import annotations

import msgspec

Point = tuple[float, ...]

# coordinates of a job, in the order of a point: see intervals/likeness.py
FEATURES = (
    "megatron",
    "deepspeed",
    "ddp",
    "maker",
    "generation",
    "fp8",
    "fp32",
    "experts",
    "parameters",
    "gpus",
    "tp",
    "pp",
    "cp",
    "ep",
    "sequence_length",
    "zero_stage",
    "recompute",
    "offload",
    "adapters",
    "eager_attention",
    "idle_device",
)


class Run(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One measured run: ``residual`` is ln(measured / predicted)."""

    id: str
    source: int  # index into ResidualTable.sources
    residual: float
    point: Point


class Residuals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runs of one quantity, with the scale at which intervals of left-out sources hold 80 %.

    ``kernel`` is the width of E2, ``growth`` that of E5: choices for which intervals hold as much near as far.
    """

    scale: float
    kernel: float
    growth: float
    runs: tuple[Run, ...]

    def ordered(self) -> Residuals:
        """The same with the runs by the size of their residual: what quantiles are read from."""
        return msgspec.structs.replace(self, runs=tuple(sorted(self.runs, key=lambda run: abs(run.residual))))


class ResidualTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Residuals of step times and of peak memory under one calibration."""

    calibration: str
    features: tuple[str, ...]
    sources: tuple[str, ...]
    step_time: Residuals
    peak_memory: Residuals


def text(table: ResidualTable) -> str:
    """The table as JSON with one run a line, so that a change of one shows as one."""
    lines = ["{", f' "calibration": {_json(table.calibration)},', f' "features": {_json(table.features)},']
    lines.append(f' "sources": {_json(table.sources)},')
    for name, end in (("step_time", ","), ("peak_memory", "")):
        values: Residuals = getattr(table, name)
        runs = ",\n".join(f"  {_json(run)}" for run in values.runs)
        settings = f'"scale": {values.scale}, "kernel": {values.kernel}, "growth": {values.growth}'
        lines.append(f' "{name}": {{{settings}, "runs": [\n{runs}\n ]}}{end}')
    return "\n".join((*lines, "}")) + "\n"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
