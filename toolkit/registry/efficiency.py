"""Efficiency curves of data/efficiency: how much of a data sheet real kernels and collectives reach.

Each row states its source and whether it was fitted or assumed. An architecture or fabric without a row takes
the row ``other``, which is marked assumed: :func:`assumptions` tells, so that a plan can say so.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from toolkit.cluster import Accelerator, ClusterSpec, Link

DATA = Path(__file__).parent.parent / "data" / "efficiency"


class MatmulCurve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Largest fraction of the dense peak that matrix products reach, and the cost of starting one."""

    max_fraction: float
    clock_fraction: float = 1.0  # of long runs: what the board's power leaves, over Ampere's
    launch_seconds: float
    status: str
    source: str


class AttentionCurve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fraction of the dense peak that fused attention reaches, as a curve over the sequence length."""

    max_fraction: float
    torch_fraction: float = 0.0  # of the kernels that PyTorch ships; 0: the same
    backward_ratio: float
    half_sequence: float
    narrow_heads: bool = True  # whether heads narrower than 128 slow it
    status: str
    source: str


class FabricCurve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fraction of a link's bandwidth that collectives reach, and their latency."""

    words: tuple[str, ...]
    ring_fraction: float
    all_reduce_fraction: float
    all_to_all_fraction: float
    start_seconds: float
    hop_seconds: float
    in_switch: bool = False  # whether the switch itself sums and copies (NVLS): one hop up, one down
    status: str
    source: str


@lru_cache(maxsize=4)
def _load(name: str) -> dict[str, dict[str, Any]]:
    import tomllib

    with (DATA / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def _of_architecture(name: str, accelerator: Accelerator) -> dict[str, Any]:
    rows = _load(name)
    architecture = accelerator.architecture.lower()
    if architecture in rows:
        return rows[architecture]
    kin = [row for row in rows if architecture.startswith(row)]  # gaudi3 -> gaudi
    return rows[kin[0] if kin else "other"]


def matmul_curve(accelerator: Accelerator) -> MatmulCurve:
    """The row of the accelerator's architecture in matmul.toml, or the assumed row ``other``.

    A machine whose kernels were measured starts them as fast as it did.
    """
    found = msgspec.convert(_of_architecture("matmul", accelerator), MatmulCurve)
    if accelerator.launch_seconds:
        found = msgspec.structs.replace(found, launch_seconds=accelerator.launch_seconds)
    return found


def attention_curve(accelerator: Accelerator, generation: int = 3) -> AttentionCurve:
    """The row of the accelerator's architecture in attention.toml, or the assumed row ``other``.

    The first generation of fused kernels has a table of its own, first_attention.toml.
    """
    table = "first_attention" if generation == 1 else "attention"
    return msgspec.convert(_of_architecture(table, accelerator), AttentionCurve)


def fabric_curve(link: Link) -> FabricCurve:
    """The first row of fabric.toml one of whose words begins a word of the link's name, else the row ``other``.

    A link over which collectives were measured has their fractions and start; all-to-all as fast as a ring.
    """
    if link.ring_bytes_per_second:
        ring = link.ring_bytes_per_second / link.bandwidth_bytes_per_second
        return FabricCurve(
            words=(link.name,),
            ring_fraction=ring,
            all_reduce_fraction=link.all_reduce_bytes_per_second / link.bandwidth_bytes_per_second,
            all_to_all_fraction=ring,
            start_seconds=link.start_seconds,
            hop_seconds=0.0,
            status="measured",
            source=link.source,
        )
    rows = _load("fabric")
    name = " " + link.name.lower().replace("_", " ").replace("-", " ")
    for row in rows.values():
        if any(" " + word in name for word in row["words"]):
            return msgspec.convert(row, FabricCurve)
    return msgspec.convert(rows["other"], FabricCurve)


def assumptions(cluster: ClusterSpec) -> tuple[str, ...]:
    """One sentence for each curve of this cluster that nobody measured."""
    accelerator = cluster.accelerator
    found = []
    if not accelerator.achievable_flop_per_second and matmul_curve(accelerator).status == "assumed":
        found.append(f"matrix product efficiency of {accelerator.name} is assumed")
    if attention_curve(accelerator).status == "assumed":
        found.append(f"attention efficiency of {accelerator.name} is assumed")
    for link in (cluster.intra_node, cluster.inter_node):
        if fabric_curve(link).status == "assumed":
            found.append(f"collective efficiency of {link.name} is assumed")
    return tuple(dict.fromkeys(found))
