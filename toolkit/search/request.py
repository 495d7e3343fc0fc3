"""Request: one question to the planner, with everything that the user pinned."""

from __future__ import annotations

import msgspec

from toolkit.cluster import ClusterSpec
from toolkit.model import ModelSpec
from toolkit.strategy import FRAMEWORKS
from toolkit.workload import Workload


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """``pins`` maps a field of Strategy to the one value it may take."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    framework: str = "any"  # any | ddp | deepspeed | fsdp | megatron
    allowed_frameworks: tuple[str, ...] = FRAMEWORKS  # those that the recipe's program can run
    pins: dict[str, int] = {}
    objective: str = "throughput"  # throughput | memory | cost
    # words of Strategy that the search takes as they are, of Megatron: tp_overlap, dp_overlap; empty: its defaults
    fixed: dict[str, str] = {}

    def replace(self, **changes: object) -> Request:
        """The same request with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Frameworks to search: the one asked for, or all that the program can run."""
        if self.framework == "any":
            return self.allowed_frameworks
        return (self.framework,)
