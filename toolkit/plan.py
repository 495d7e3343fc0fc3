"""Plan: a strategy with its estimates and everything needed to run it. ``plan.json`` is the only hand-over."""

from __future__ import annotations

from typing import Any

import msgspec

from toolkit import __version__
from toolkit import strategy as strategies
from toolkit.cluster import ClusterSpec
from toolkit.errors import Problems, ToolkitError
from toolkit.estimates import VERDICTS, CommunicationEstimate, HostMemoryEstimate, MemoryEstimate, StepEstimate
from toolkit.gpu_counts import MOST_GPUS
from toolkit.interval import Interval
from toolkit.model import ModelSpec
from toolkit.programs import unfollowed
from toolkit.recipe import Contract, contract_problems
from toolkit.resilience import ResilienceEstimate
from toolkit.strategy import Strategy
from toolkit.workload import MOST_SEQUENCES, MOST_TOKENS, Workload, workload_problems

SCHEMA = 1
NEVER_ZERO = ("num_hidden_layers", "hidden_size", "vocab_size")
MAY_BE_ZERO = ("zero_stage", "sequence_parallel", "recompute", "recompute_layers", "offload")
# the largest that the options and the decoder take
MOST: dict[str, float] = {
    "strategy": MOST_GPUS,
    "cluster": MOST_GPUS,
    "gradient_accumulation_steps": MOST_SEQUENCES,
    "zero_stage": 3,
    "sequence_parallel": 1,
    "recompute_layers": 10_000,
    "sequence_length": MOST_TOKENS,
    "global_batch_size": MOST_SEQUENCES,
    "num_hidden_layers": 10_000,
    "hidden_size": 2**24,
    "vocab_size": 2**24,
    "norm_epsilon": 1.0,
    "partial_rotary_factor": 1.0,
    "initializer_range": 1e3,
}


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contract (what is learnt), strategy (how it is laid out), estimates, and provenance."""

    name: str  # of the recipe or model: names the job and its files
    program: str  # finetune | pretrain: which training program runs it
    recipe: str = ""  # "tiny@1", with the names of settings that were changed, or empty
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    contract: Contract
    strategy: Strategy
    verdict: str = "fits"  # fits | tight | no
    memory: MemoryEstimate
    host_memory: HostMemoryEstimate
    communication: CommunicationEstimate
    step: StepEstimate
    step_interval80: Interval | None = None  # seconds; None where no comparable run is known
    memory_interval80: Interval | None = None  # bytes of the fullest GPU
    resilience: ResilienceEstimate | None = None  # None where nothing is known of failures
    memory_limit_bytes: float = 0.0
    total_parameters: int = 0
    active_parameters: int = 0
    reason: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    calibration: str = "assumed"
    toolkit_version: str = __version__


def to_json(plan: Plan) -> dict[str, Any]:
    """Plain data with a schema number; ``strategy`` names recompute and offload."""
    values: dict[str, Any] = msgspec.to_builtins(plan)
    values["strategy"] = strategies.to_json(plan.strategy)
    return {"schema": SCHEMA} | values


def dump(plan: Plan) -> str:
    """The text of ``plan.json``."""
    return msgspec.json.format(msgspec.json.encode(to_json(plan)), indent=2).decode() + "\n"


def load(text: str | bytes, where: str = "plan.json") -> Plan:
    """Read ``plan.json`` back; raises ToolkitError naming the path inside the file."""
    try:
        values = msgspec.json.decode(text)
        if not isinstance(values, dict) or not isinstance(values.get("strategy"), dict):
            raise ToolkitError(f"{where} is not a plan", remedy="make one with: toolkit plan ... --out DIR")
        schema = values.pop("schema", None)
        if type(schema) is not int or schema != SCHEMA:
            raise ToolkitError(
                f"{where} has schema {str(schema)[:40]}, this toolkit reads {SCHEMA}",
                remedy="make the plan again with toolkit plan",
            )
        values["strategy"] = msgspec.structs.asdict(strategies.from_json(values["strategy"]))
        plan = msgspec.convert(values, Plan)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise ToolkitError(f"{where}: {error}", remedy="make the plan again with toolkit plan") from error
    _require_possible(plan, where)
    return plan


def _require_possible(plan: Plan, where: str) -> None:
    """Numbers that no job has: a plan.json may have been edited by hand; raises ToolkitError with all of them."""
    ranges: list[tuple[str, bool, Any, str]] = [
        ("verdict", plan.verdict in VERDICTS, plan.verdict, " or ".join(VERDICTS))
    ]
    groups: tuple[tuple[str, msgspec.Struct, dict[str, int]], ...] = (
        ("strategy", plan.strategy, dict.fromkeys(MAY_BE_ZERO, 0)),
        ("cluster", plan.cluster, {"fast_domain_gpus": 0, "host_cores": 0}),
        ("workload", plan.workload, {each.name: 0 for each in msgspec.structs.fields(Workload) if each.default == 0}),
        ("model", plan.model, dict.fromkeys(set(plan.model.__struct_fields__) - {*NEVER_ZERO}, 0)),
    )
    if plan.resilience is not None:
        groups = (*groups, ("resilience", plan.resilience, {}))
    for group, values, least in groups:
        for name in values.__struct_fields__:
            value = getattr(values, name)
            if type(value) is int:
                low, high = least.get(name, 1), MOST.get(name, MOST.get(group, 2**53))
                ranges.append((f"{group}.{name}", low <= value <= high, value, f"{low:,} to {high:,}"))
            elif type(value) is float and group == "model":
                most = MOST.get(name, 2.0**53)
                ranges.append((f"{group}.{name}", 0.0 <= value <= most, value, f"0 to {most:g}"))
    for name in ("total_parameters", "active_parameters"):
        count = getattr(plan, name)
        ranges.append((name, 0 <= count <= 2**53, count, f"0 (not known) to {2**53:,}"))
    with Problems() as problems:
        for name, good, value, allowed in ranges:
            if not good:
                problems.add(f"{where}: {name} is {value!r}", f"it can be {allowed}")
        for problem in workload_problems(plan.workload):
            problems.add(f"{where}: workload.{problem.message}", problem.remedy)
        for problem in (*contract_problems(plan.contract), *unfollowed(plan.program, plan.contract)):
            problems.add(f"{where}: contract.{problem.message}", problem.remedy)
        if plan.contract.rope_theta not in (0.0, plan.model.rope_theta):
            problems.add(
                f"{where}: contract.rope_theta is {plan.contract.rope_theta}, the plan's model has"
                f" {plan.model.rope_theta}",
                "make the plan again with toolkit plan",
            )
