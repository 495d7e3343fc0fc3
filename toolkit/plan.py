"""Plan: a strategy with its estimates and everything needed to run it. ``plan.json`` is the only hand-over."""

from __future__ import annotations

from typing import Any

import msgspec

from toolkit import __version__
from toolkit import strategy as strategies
from toolkit.cluster import ClusterSpec
from toolkit.errors import ToolkitError
from toolkit.estimates import CommunicationEstimate, HostMemoryEstimate, MemoryEstimate, StepEstimate
from toolkit.model import ModelSpec
from toolkit.recipe import Contract
from toolkit.strategy import Strategy
from toolkit.workload import Workload

SCHEMA = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Contract (what is learnt), strategy (how it is laid out), estimates, and provenance."""

    name: str  # of the recipe or model: names the job and its files
    program: str  # finetune | pretrain: which training program runs it
    recipe: str = ""  # "tiny@1" or empty
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
        if schema != SCHEMA:
            raise ToolkitError(
                f"{where} has schema {schema}, this toolkit reads {SCHEMA}",
                remedy="make the plan again with toolkit plan",
            )
        values["strategy"] = msgspec.structs.asdict(strategies.from_json(values["strategy"]))
        return msgspec.convert(values, Plan)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise ToolkitError(f"{where}: {error}", remedy="make the plan again with toolkit plan") from error
