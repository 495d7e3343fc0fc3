"""The GPUs of one node as ``nvidia-smi -q -x`` tells: number, memory errors, memory in use, clocks, driver.

Names of the fields are those of NVIDIA's XML log, versions 11 to 13 (drivers 450 to 580). A field that a GPU does not
have says ``N/A``, and is no trouble. Not for AMD and Intel: without nvidia-smi the check is skipped, and says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from xml.etree import ElementTree

from toolkit.runtime.preflight.verdict import Trouble

IDLE_BYTES = 2.0 * 2**30  # in use before the job starts: contexts of monitors are below, training is far above
BROKEN = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
REASONS = re.compile(r"clocks_(?:throttle|event)_reason_(\w+)")


def log(time_limit: float) -> str | None:
    """The log of this node, None where there is no nvidia-smi; raises OSError for one that fails or hangs."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, timeout=time_limit)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"nvidia-smi has not answered within {time_limit:.0f} s") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise OSError(f"nvidia-smi failed ({done.returncode}): {said[0] if said else 'it says nothing'}")
    return done.stdout


def read(text: str) -> list[dict[str, object]]:
    """One dictionary for each GPU. Raises OSError for what is no such log."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise OSError(f"nvidia-smi wrote what is no XML: {error}") from error
    driver = root.findtext("driver_version", "").strip()
    return [_gpu(each, driver) for each in root.findall("gpu")]


def _gpu(gpu: ElementTree.Element, driver: str) -> dict[str, object]:
    errors = 0
    for where in ("ecc_errors/volatile", "ecc_errors/aggregate"):
        place = gpu.find(where)
        if place is not None and where.endswith("volatile"):
            # older cards count double_bit/total, newer ones sram_ and dram_uncorrectable, with or without a suffix
            errors = sum(_number(each) for each in place if "uncorrectable" in each.tag)
            errors += _number(place.find("double_bit/total"))
    reasons = [
        found[1]
        for each in gpu.iter()
        if (found := REASONS.fullmatch(each.tag)) and (each.text or "").strip() == "Active"
    ]
    return {
        "name": gpu.findtext("product_name", "").strip(),
        "uuid": gpu.findtext("uuid", "").strip(),
        "index": gpu.findtext("minor_number", "").strip(),
        "driver": driver,
        "uncorrectable_errors": errors,
        "rows_to_remap": gpu.findtext("remapped_rows/remapped_row_pending", "").strip() == "Yes",
        "remapping_failed": gpu.findtext("remapped_rows/remapped_row_failure", "").strip() == "Yes",
        "pages_to_retire": gpu.findtext("retired_pages/pending_retirement", "").strip() == "Yes",
        "reset_required": gpu.findtext("gpu_reset_status/reset_required", "").strip() == "Yes",
        "used_bytes": 2.0**20 * _number(gpu.find("fb_memory_usage/used")),
        "processes": [
            f"{each.findtext('process_name', '').strip()} ({each.findtext('pid', '').strip()})"
            for each in gpu.findall("processes/process_info")
        ],
        "slowed_by": [each for each in BROKEN if each in reasons],
        "sm_clock_mhz": _number(gpu.find("clocks/sm_clock")),
        "max_sm_clock_mhz": _number(gpu.find("max_clocks/sm_clock")),
    }


def _number(element: ElementTree.Element | None) -> int:
    found = re.match(r"\s*(\d+)", (element.text or "") if element is not None else "")
    return int(found[1]) if found else 0


def judge(by_node: dict[str, list[dict[str, object]]], wanted: int, first: str) -> list[Trouble]:
    """Troubles of each node's GPUs, and drivers or models that differ between the nodes."""
    from toolkit.runtime.preflight.versions import compare

    troubles: list[Trouble] = []
    for node, found in by_node.items():
        if len(found) < wanted:
            text = f"{len(found)} GPUs are there, the plan needs {wanted}"
            troubles.append(_trouble(node, text, "one has dropped off the bus: look at dmesg for Xid errors"))
        for gpu in found:
            troubles += _of_one(node, gpu)
    kinds = {
        node: {"driver": str(found[0]["driver"]), "GPU": str(found[0]["name"])}
        for node, found in by_node.items()
        if found
    }
    return troubles + (compare(kinds, first) if len(kinds) > 1 else [])


def _of_one(node: str, gpu: dict[str, object]) -> list[Trouble]:
    name = f"GPU {gpu['index']} ({gpu['uuid']})"
    reset = "reset it, or drain the node"
    troubles = []
    if gpu["uncorrectable_errors"]:
        text = f"{name} has had {gpu['uncorrectable_errors']} uncorrectable memory errors since it was started"
        troubles.append(_trouble(node, text, reset))
    for fact, text in (
        ("rows_to_remap", "waits for a reset to remap broken memory rows"),
        ("pages_to_retire", "waits for a reset to retire broken memory pages"),
        ("remapping_failed", "has no spare rows left for its broken memory: it must be replaced"),
        ("reset_required", "must be reset"),
    ):
        if gpu[fact]:
            troubles.append(_trouble(node, f"{name} {text}", reset))
    used, processes = float(str(gpu["used_bytes"])), gpu["processes"]
    if used > IDLE_BYTES:
        whose = f" by {', '.join(map(str, processes))}" if isinstance(processes, list) and processes else ""
        text = f"{name} has {used / 2**30:.1f} GiB in use before the job starts{whose}"
        troubles.append(_trouble(node, text, "end what a former job left there"))
    if gpu["slowed_by"]:
        text = f"{name} is slowed down ({', '.join(map(str, gpu['slowed_by']))})"  # type: ignore[call-overload]
        text += f", at {gpu['sm_clock_mhz']} of {gpu['max_sm_clock_mhz']} MHz"
        troubles.append(_trouble(node, text, "look at its cooling and power supply"))
    return troubles


def _trouble(node: str, message: str, remedy: str) -> Trouble:
    return Trouble(check="gpus", nodes=(node,), message=message, remedy=remedy)
