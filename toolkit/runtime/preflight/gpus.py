"""Whether the GPUs of the nodes are fit: number, memory errors, memory in use, clocks, driver and model.

Judges what :mod:`toolkit.runtime.preflight.smi` has read, of as many GPUs of each node as the plan needs; what a node
has beyond them is not looked at. Not for AMD and Intel: without nvidia-smi the check is skipped, and says so.
"""

from __future__ import annotations

from typing import Any

from toolkit.runtime.preflight.smi import IDLE_BYTES
from toolkit.runtime.preflight.verdict import Trouble
from toolkit.runtime.preflight.versions import compare

RESET = "reset it (nvidia-smi -r), or drain the node"
REPLACE = "have it replaced; drain the node"
FAULTS = (
    ("rows_to_remap", "waits for a reset to remap broken memory rows", RESET),
    ("pages_to_retire", "waits for a reset to retire broken memory pages", RESET),
    ("repair_pending", "waits for a reset to repair broken memory or cores", RESET),
    ("remapping_failed", "has no spare rows left for its broken memory: it must be replaced", REPLACE),
    ("worn_out", "has had more memory errors than its maker allows, or such as cannot be repaired", REPLACE),
    ("reset_required", "must be reset", RESET),
)


def judge(by_node: dict[str, list[dict[str, Any]]], wanted: int, first: str) -> list[Trouble]:
    """Troubles of each node's GPUs, and drivers or models that differ between the nodes."""
    troubles: list[Trouble] = []
    for node, found in by_node.items():
        if len(found) < wanted:
            verb = "is" if len(found) == 1 else "are"
            text = f"{len(found)} GPU{'' if len(found) == 1 else 's'} {verb} there, the plan needs {wanted}"
            troubles.append(_trouble(node, text, "one has dropped off the bus: look at dmesg for Xid errors"))
        for gpu in found[:wanted]:
            troubles += _of_one(node, gpu)
    kinds = {
        node: {"driver": str(found[0]["driver"]), "GPU": str(found[0]["name"])}
        for node, found in by_node.items()
        if found
    }
    return troubles + (compare(kinds, first) if len(kinds) > 1 else [])


def _of_one(node: str, gpu: dict[str, Any]) -> list[Trouble]:
    name = f"GPU {gpu['index']} ({gpu['uuid']})"
    troubles = []
    if gpu["failed"]:
        more = f", and {len(gpu['failed']) - 1} more" if len(gpu["failed"]) > 1 else ""
        text = f"{name} cannot be read by its driver: {gpu['failed'][0]}{more}"
        troubles.append(_trouble(node, text, "look at dmesg for Xid errors; reset it, or reboot the node"))
    if gpu["uncorrectable_errors"]:
        text = f"{name} has had {gpu['uncorrectable_errors']} uncorrectable memory errors since it was started"
        troubles.append(_trouble(node, text, RESET))
    troubles += [_trouble(node, f"{name} {text}", remedy) for fact, text, remedy in FAULTS if gpu[fact]]
    if gpu["recovery"]:
        text = f"{name}: its driver asks for {gpu['recovery']!r}"
        troubles.append(_trouble(node, text, "do what it asks for, or drain the node"))
    if gpu["split"]:
        text = f"{name} is split into instances (MIG), the plan needs it whole"
        troubles.append(_trouble(node, text, f"switch it off (nvidia-smi -i {gpu['index']} -mig 0), or drain the node"))
    if gpu["used_bytes"] > IDLE_BYTES:
        whose = f" by {', '.join(gpu['processes'])}" if gpu["processes"] else ""
        text = f"{name} has {gpu['used_bytes'] / 2**30:.1f} GiB in use before the job starts{whose}"
        troubles.append(_trouble(node, text, "end what a former job left there"))
    if gpu["slowed_by"]:
        text = f"{name} is slowed down ({', '.join(gpu['slowed_by'])})"
        text += f", at {gpu['sm_clock_mhz']} of {gpu['max_sm_clock_mhz']} MHz"
        troubles.append(_trouble(node, text, "look at its cooling and power supply"))
    return troubles


def _trouble(node: str, message: str, remedy: str) -> Trouble:
    return Trouble(check="gpus", nodes=(node,), message=message, remedy=remedy)
