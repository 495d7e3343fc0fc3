"""A strategy that does not fit: which single changes to it would. What ``toolkit estimate`` says beside "no".

``misses`` searches the whole space for a request; here one strategy keeps all else that was given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from toolkit.calibration import Calibration
from toolkit.errors import ToolkitError
from toolkit.search.constraints import violated
from toolkit.search.planner import choose
from toolkit.search.request import Request
from toolkit.strategy import Strategy
from toolkit.units import format_bytes

MOST_NAMED = 5  # changes of one sentence


def remedies(request: Request, calibration: Calibration, strategy: Strategy) -> str:
    """One sentence with the changes that fit, the nearest to what was asked first; empty where none does."""
    found: list[str] = []
    for words, changed, workload in _changes(request, strategy):
        tried = request.replace(workload=workload) if workload is not None else request
        with contextlib.suppress(ToolkitError):  # a method or degree that this model does not take
            if any(not constraint.advice for constraint, _ in violated(tried, changed)):
                continue
            choice = choose(tried, calibration, changed)
            if choice.verdict == "fits":
                found.append(f"{words} ({format_bytes(choice.estimate.memory.total_bytes)})")
        if len(found) == MOST_NAMED:
            break
    return f"fits with one of: {', '.join(found)}" if found else ""


def _changes(request: Request, s: Strategy) -> Iterator[tuple[str, Strategy, Any]]:
    """Words of the command line, the changed strategy, and the changed workload where it is that which changes."""
    if s.recompute < 2:
        yield "--recompute full", msgspec.structs.replace(s, recompute=2), None
    if s.micro_batch_size > 1:
        batch = s.micro_batch_size * s.gradient_accumulation_steps
        yield "--micro-batch 1", _replaced(s, micro_batch_size=1, gradient_accumulation_steps=batch), None
    if s.framework == "ddp" and s.dp > 1:
        for stage in (1, 2, 3):
            yield f"--framework deepspeed --zero {stage}", _replaced(s, framework="deepspeed", zero_stage=stage), None
        yield "--framework fsdp", _replaced(s, framework="fsdp", zero_stage=3, dp_shard=s.dp), None
    if s.framework == "deepspeed":
        for stage in range(s.zero_stage + 1, 4):
            yield f"--zero {stage}", _replaced(s, zero_stage=stage), None
        if s.offload == 0:
            sharded = max(s.zero_stage, 1)
            words = "--offload optimizer" if sharded == s.zero_stage else f"--zero {sharded} --offload optimizer"
            yield words, _replaced(s, zero_stage=sharded, offload=1), None
        if s.offload < 2:
            yield "--zero 3 --offload optimizer+parameters", _replaced(s, zero_stage=3, offload=2), None
    if s.framework == "fsdp" and s.offload == 0:
        yield "--offload optimizer+parameters", _replaced(s, offload=2), None
    if s.framework == "megatron":
        if s.zero_stage == 0 and s.dp > 1:
            yield "--zero 1", _replaced(s, zero_stage=1), None
        for axis in ("tp", "pp"):
            for factor in (2, 4, 8):
                if s.dp % factor == 0:
                    degree = getattr(s, axis) * factor
                    yield f"--{axis} {degree}", _wider(s, axis, degree, factor), None
    if request.workload.method == "full" and s.framework != "megatron":
        yield "--method lora", s, msgspec.structs.replace(request.workload, method="lora")
    if request.workload.method != "qlora" and s.framework != "megatron":
        yield "--method qlora", s, msgspec.structs.replace(request.workload, method="qlora")


def _wider(s: Strategy, axis: str, degree: int, factor: int) -> Strategy:
    """A larger tensor or pipeline degree, paid for by data parallelism; the global batch stays."""
    dp, times = s.dp // factor, s.gradient_accumulation_steps * factor
    changes = {axis: degree, "dp": dp, "dp_shard": dp, "gradient_accumulation_steps": times}
    if axis == "tp" and s.etp == s.tp:
        changes["etp"] = degree
    return _replaced(s, **changes)


def _replaced(strategy: Strategy, **changes: Any) -> Strategy:
    return msgspec.structs.replace(strategy, **changes)
