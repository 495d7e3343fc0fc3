"""Dry runs of a plan, one process for each kind of rank, and their bytes beside the predicted ones."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from toolkit import plan as plans
from toolkit.calibration import Calibration
from toolkit.errors import Problem, Problems, ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import child
from toolkit.strategy import describe
from toolkit.verify.predicted import PARTS, Rank, ranks
from toolkit.verify.reduced import reduced
from toolkit.verify.traffic import compared, disagreements

# framework: (program, what it imports, the extra of this package that brings it)
PROGRAMS = {
    "ddp": ("toolkit.verify.ddp", ("torch", "transformers"), "train"),
    "deepspeed": ("toolkit.verify.deepspeed", ("torch", "deepspeed", "transformers"), "train"),
    "fsdp": ("toolkit.verify.fsdp", ("torch", "accelerate", "transformers"), "train"),
    "megatron": ("recipes.pretrain.dry_run", ("torch", "megatron.core"), "megatron"),
}
TOLERANCE = 0.03  # relative error of a part that is reported as a finding
LEAST_PART = 0.001  # of the peak: what is off by less is no finding (states of small adapters)
PEAK_LOAD = "expert_peak_load"
TIME_LIMIT = 600.0  # seconds for each rank


def verify(
    plan: Plan, calibration: Calibration, layers: int = 0, tolerance: float = TOLERANCE, limit: float = TIME_LIMIT
) -> dict[str, Any]:
    """Predicted and counted bytes of each kind of rank, at ``layers`` layers (0: all of them).

    Returns plain data: ``ranks`` (kind, rank, predicted_bytes, counted_bytes, relative_errors by part,
    relative_error of the peak), ``communication`` (predicted and counted bytes by axis), ``collectives`` of the
    counted step, ``assumptions`` in words, ``findings``, ``seconds``. Raises ToolkitError for a framework that is
    not installed, a plan that cannot be run dry, and a dry run that fails or takes too long.
    """
    started = time.perf_counter()
    program = _program(plan)
    small = reduced(plan, layers)
    calibration, assumptions = as_run_dry(small, calibration)
    rows, sent, collectives, findings = [], [], [], []
    for rank in ranks(small, calibration):
        answer = _start(program, small, rank, limit)
        row = _row(rank, answer)
        rows.append(row)
        sent.append(answer["collectives"])
        collectives += [{"kind": rank.kind, **one} for one in answer["collectives"]]
        least = LEAST_PART * row["counted_bytes"]["peak"]
        for part, error in row["relative_errors"].items():
            apart = abs(row["predicted_bytes"][part] - row["counted_bytes"][part])
            if abs(error) > tolerance and apart > least:
                findings.append(
                    f"{rank.kind}: {part} predicted {row['predicted_bytes'][part]:.4g} bytes,"
                    f" counted {row['counted_bytes'][part]:.4g}: {error:+.1%}"
                )
    axes = compared(small, calibration, sent)
    findings += disagreements(axes, tolerance)
    return {
        "strategy": describe(small.strategy),
        "layers": small.model.num_hidden_layers,
        "world_size": small.cluster.num_gpus,
        "tolerance": tolerance,
        "assumptions": assumptions,
        "ranks": rows,
        "communication": axes,
        "collectives": collectives,
        "findings": findings,
        "seconds": time.perf_counter() - started,
    }


def as_run_dry(plan: Plan, calibration: Calibration) -> tuple[Calibration, list[str]]:
    """The coefficients of what a dry run does, and a sentence for each that it changes."""
    if not plan.model.is_moe or plan.strategy.framework != "megatron":
        return calibration, []
    load = calibration[PEAK_LOAD]
    said = f"every expert gets its share of the tokens: predicted with {PEAK_LOAD} 1, not {load:g}"
    return calibration.with_values({PEAK_LOAD: 1.0}), [said]


def relative_error(predicted: float, counted: float) -> float:
    """``predicted / counted - 1``; what is counted as nothing is taken for one byte."""
    return (predicted - counted) / max(counted, 1.0)


def _row(rank: Rank, answer: dict[str, Any]) -> dict[str, Any]:
    counted = {name: size for name, size in answer["counted_bytes"].items() if size or name in rank.predicted_bytes}
    errors = {
        part: relative_error(rank.predicted_bytes[part], counted[part])
        for part in PARTS
        if part in rank.predicted_bytes
    }
    return {
        "kind": rank.kind,
        "rank": answer["rank"],
        "predicted_bytes": rank.predicted_bytes,
        "counted_bytes": counted,
        "other_bytes": answer.get("other_bytes", {}),
        "relative_errors": errors,
        "relative_error": errors["peak"],
        "seconds": answer["seconds"],
    }


def _program(plan: Plan) -> str:
    framework = plan.strategy.framework
    if framework not in PROGRAMS:
        raise ToolkitError(
            f"a {framework} plan has no dry run", remedy=f"verify a plan for {', '.join(sorted(PROGRAMS))}"
        )
    program, needed, extra = PROGRAMS[framework]
    with Problems() as problems:
        for name in needed:
            if not _installed(name):
                problems.add(f"{name} is not installed: the dry run is its own code", f"pip install '.[{extra}]'")
    return program


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _start(program: str, plan: Plan, rank: Rank, limit: float) -> dict[str, Any]:
    """One dry run in a process of its own, whose patches go with it."""
    surroundings = {name: value for name, value in os.environ.items() if name not in ("LOCAL_SIZE", "PYTHONSAFEPATH")}
    surroundings |= {
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with tempfile.TemporaryDirectory() as folder:
        plan_file, answer_file = Path(folder, "plan.json"), Path(folder, "answer.json")
        plan_file.write_text(plans.dump(plan))
        command = [sys.executable, "-m", program, str(plan_file), rank.kind, str(rank.rank), str(answer_file)]
        try:
            done = child.run(command, surroundings, limit)
        except subprocess.TimeoutExpired as error:
            raise ToolkitError(
                f"the dry run of the {rank.kind} took more than {limit:g} s",
                remedy="give a larger --time-limit, or fewer --layers",
            ) from error
        if not answer_file.exists():
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ToolkitError(
                f"the dry run of the {rank.kind} failed: {lines[-1]}",
                remedy=f"the plan may need what {plan.strategy.framework} does without a GPU; its whole message:\n"
                + "\n".join(lines[-8:]),
            )
        answer: dict[str, Any] = json.loads(answer_file.read_text())
    if "problems" in answer:
        raise ToolkitError(*(Problem(message, remedy) for message, remedy in answer["problems"]))
    return answer
