"""Rows written out for the tests, through the same reader as any file."""

from __future__ import annotations

import csv
import io
from typing import Any

from toolkit.cli.validate_lookups import lookups
from toolkit.registry.calibrations import load_calibration
from toolkit.validate.document import validate
from toolkit.validate.job import Job, Skip, job_of
from toolkit.validate.rows import COLUMNS, Row, read

LOOKUPS = lookups()
RUN: dict[str, object] = {
    "id": "a",
    "source": "tests",
    "model": "llama-3-8b",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 128256,
    "seq_len": 8192,
    "task": "pretrain",
    "framework": "Megatron-LM",
    "gpu": "H100-SXM",
    "gpu_mem_gb": 80,
    "n_gpus": 16,
    "gpus_per_node": 8,
    "zero_norm": "1",
    "tp": 2,
    "pp": 2,
    "cp": 1,
    "vpp": 1,
    "sp": "1",
    "recompute_norm": "none",
    "micro_batch": 1,
    "global_batch": 64,
    "precision_norm": "bf16",
    "step_time_s": 10,
    "outcome": "ok",
}


def written(*rows: dict[str, object]) -> bytes:
    """The csv text of runs that differ from RUN as given."""
    out = io.StringIO()
    table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows([RUN | row for row in rows])
    return out.getvalue().encode()


def row(**changes: object) -> Row:
    return read(written(changes), "runs.csv")[0]


def found(**changes: object) -> Job | Skip:
    return job_of(row(**changes), LOOKUPS)


def job(**changes: object) -> Job:
    made = found(**changes)
    assert isinstance(made, Job), made.reason
    return made


def reason(**changes: object) -> str:
    made = found(**changes)
    assert isinstance(made, Skip), made
    return made.reason


def validated(data: bytes) -> dict[str, Any]:
    return validate(read(data, "runs.csv"), LOOKUPS, load_calibration())
