"""What ``nvidia-smi -q -x`` says of the GPUs that this job may use: one dictionary for each.

Names of the fields are those of NVIDIA's XML log, versions 10 to 13 (drivers 418 to 595). A field that a GPU does not
have says ``N/A``, ``Not Supported`` or ``Requested functionality has been deprecated``, and is no trouble; one that the
driver fails to read says ``ERR!`` or ``Unknown Error``, and is. Where jobs are not kept apart by control groups the log
lists the GPUs of other jobs too: ``CUDA_VISIBLE_DEVICES`` tells which count.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

IDLE_BYTES = 2.0 * 2**30  # in use before the job starts: contexts of monitors are below, training is far above
SETTLE_SECONDS = 8.0  # the driver may take so long to free what a killed process had
BROKEN = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
REASONS = re.compile(r"clocks_(?:throttle|event)_reason_(\w+)")
FAILED = re.compile(r"\[?(ERR!|Unknown Error|GPU is lost|GPU requires reset|Reset Required)\]?", re.IGNORECASE)
NOTHING = ("", "none", "n/a", "[n/a]", "not supported", "[not supported]", "no")
INFOROM = 14  # nvidia-smi's exit code where the infoROM of a GPU is corrupted: a warning, the log is whole
REMEDIES = (  # what nvidia-smi says instead of a log, and what helps
    ("version mismatch", "the driver was updated under the running kernel: reload its module, or reboot the node"),
    ("couldn't communicate with the nvidia driver", "load the driver (modprobe nvidia), or drain the node"),
    ("driver is not loaded", "load the driver (modprobe nvidia), or drain the node"),
    ("no devices were found", "look at dmesg for Xid errors, and whether the job was given GPUs"),
    ("unable to determine the device handle", "a GPU has dropped off the bus: reboot the node, or drain it"),
    ("is lost", "a GPU has dropped off the bus: reboot the node, or drain it"),
    ("nvml", "look at the driver's libraries; a container needs them from the host (--nv, --gpus all)"),
    ("libnvidia-ml", "look at the driver's libraries; a container needs them from the host (--nv, --gpus all)"),
)


class Unreadable(OSError):
    """nvidia-smi tells nothing; ``remedy`` is what helps."""

    def __init__(self, text: str, remedy: str = "look at the driver of this node, or drain it") -> None:
        super().__init__(text)
        self.remedy = next((help_ for said, help_ in REMEDIES if said in text.lower()), remedy)


def facts(wanted: int, vendor: str, time_limit: float) -> list[dict[str, Any]] | dict[str, str]:
    """The GPUs of this job, or ``{"skipped": why}``. Raises OSError where they cannot be read.

    Memory that is in use is looked at again for ``SETTLE_SECONDS``: a process that was killed just now may hold it.
    """
    visible = _visible()
    if visible and visible[0].startswith("MIG-"):
        return {"skipped": "instances of a GPU (MIG) are not looked at"}
    end = time.monotonic() + min(SETTLE_SECONDS, 0.5 * time_limit)
    while True:
        text = log(time_limit)
        if text is None:
            return _without(wanted, vendor)
        found = chosen(read(text), visible)
        if not any(gpu["used_bytes"] > IDLE_BYTES for gpu in found[:wanted]) or time.monotonic() > end:
            return found
        time.sleep(0.5)


def _visible() -> list[str] | None:
    """What CUDA will see: numbers or names; None where nothing says so."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else [each.strip() for each in text.split(",") if each.strip()]


def chosen(found: list[dict[str, Any]], visible: list[str] | None) -> list[dict[str, Any]]:
    """Those of ``found`` that ``CUDA_VISIBLE_DEVICES`` names, by number in this log or by (the start of) their UUID.

    As in CUDA, the first that names none ends the list.
    """
    if visible is None:
        return found
    mine: list[dict[str, Any]] = []
    for name in visible:
        if name.isdecimal():
            matches = found[int(name) : int(name) + 1]
        else:
            matches = [gpu for gpu in found if name.startswith("GPU-") and str(gpu["uuid"]).startswith(name)]
        if len(matches) != 1:
            break
        mine += matches
    return mine


def _without(wanted: int, vendor: str) -> dict[str, str]:
    devices = len([each for each in Path("/dev").glob("nvidia[0-9]*") if each.name[6:].isdecimal()])
    if vendor == "NVIDIA" and devices < wanted and not Path("/dev/dxg").exists():  # dxg: Windows' own, for WSL
        raise Unreadable(
            f"there is no nvidia-smi here, and {devices} NVIDIA devices in /dev; the plan needs {wanted}",
            "start the job where the GPUs are; in a container with the host's driver (--nv, --gpus all)",
        )
    return {"skipped": "there is no nvidia-smi"}


def log(time_limit: float) -> str | None:
    """The log of this node, None where there is no nvidia-smi; raises Unreadable for one that fails or hangs."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(  # names of other users' processes are any bytes
            ["nvidia-smi", "-q", "-x"], capture_output=True, text=True, errors="replace", timeout=time_limit
        )
    except subprocess.TimeoutExpired as error:
        text = f"nvidia-smi has not answered within {time_limit:.0f} s"
        raise Unreadable(text, "a GPU or its driver hangs: look at dmesg for Xid errors, reboot the node") from error
    if done.returncode not in (0, INFOROM):
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unreadable(f"nvidia-smi failed ({done.returncode}): {said[0].strip() if said else 'it says nothing'}")
    return done.stdout


def read(text: str) -> list[dict[str, Any]]:
    """One dictionary for each GPU. Raises Unreadable for what is no log; warnings around it are passed over."""
    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < start:
        said = (text.strip().splitlines() or ["nothing"])[0].strip()
        raise Unreadable(f"nvidia-smi wrote no XML: {said[:200]}")
    try:
        root = ElementTree.fromstring(text[start : end + len("</nvidia_smi_log>")])
    except ElementTree.ParseError as error:
        raise Unreadable(f"nvidia-smi wrote what is no XML: {error}") from error
    driver = root.findtext("driver_version", "").strip()
    return [_gpu(each, str(number), driver) for number, each in enumerate(root.findall("gpu"))]


def _gpu(gpu: ElementTree.Element, number: str, driver: str) -> dict[str, Any]:
    volatile = gpu.find("ecc_errors/volatile")
    # older cards count double_bit/total, newer ones sram_ and dram_uncorrectable, with or without a suffix
    errors = _number(gpu.find("ecc_errors/volatile/double_bit/total"))
    errors += sum(_number(each) for each in volatile if "uncorrectable" in each.tag) if volatile is not None else 0
    reasons = [
        found[1]
        for each in gpu.iter()
        if (found := REASONS.fullmatch(each.tag)) and (each.text or "").strip() == "Active"
    ]
    action = gpu.findtext("gpu_recovery_action", "").strip()
    return {
        "name": gpu.findtext("product_name", "").strip(),
        "uuid": gpu.findtext("uuid", "").strip(),
        "index": number,
        "driver": driver,
        "uncorrectable_errors": errors,
        "rows_to_remap": _yes(gpu, "remapped_rows/remapped_row_pending"),
        "remapping_failed": _yes(gpu, "remapped_rows/remapped_row_failure"),
        "pages_to_retire": _yes(gpu, "retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        "repair_pending": _yes(gpu, "ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending"),
        "worn_out": _yes(gpu, "ecc_errors/aggregate/sram_threshold_exceeded", "ecc_errors/unrepairable_memory"),
        "reset_required": _yes(gpu, "gpu_reset_status/reset_required", "gpu_reset_status/drain_and_reset_recommended"),
        "recovery": "" if action.lower() in NOTHING or "deprecated" in action else action,
        "split": gpu.findtext("mig_mode/current_mig", "").strip() == "Enabled",
        "failed": _failed(gpu),
        "used_bytes": 2.0**20 * _number(gpu.find("fb_memory_usage/used")),
        "processes": _processes(gpu),
        "slowed_by": [each for each in BROKEN if each in reasons],
        "sm_clock_mhz": _number(gpu.find("clocks/sm_clock")),
        "max_sm_clock_mhz": _number(gpu.find("max_clocks/sm_clock")),
    }


def _yes(gpu: ElementTree.Element, *places: str) -> bool:
    return any(gpu.findtext(place, "").strip() == "Yes" for place in places)


def _number(element: ElementTree.Element | None) -> int:
    found = re.match(r"\s*(\d+)", (element.text or "") if element is not None else "")
    return int(found[1]) if found else 0


def _failed(gpu: ElementTree.Element) -> list[str]:
    """Fields that the driver could not read, each with what stands there; a fan is none of a server's GPUs."""
    others = {id(each) for part in gpu.findall("processes") for each in part.iter()}
    return [
        f"{each.tag} is {found[1]}"
        for each in gpu.iter()
        if id(each) not in others and each.tag != "fan_speed" and (found := FAILED.fullmatch((each.text or "").strip()))
    ]


def _processes(gpu: ElementTree.Element) -> list[str]:
    """Those that compute, or all where none says so; names are command lines at times."""
    found = gpu.findall("processes/process_info")
    computing = [each for each in found if "C" in each.findtext("type", "")]
    return [
        f"{(each.findtext('process_name', '').split() or ['?'])[0][-60:]} ({each.findtext('pid', '').strip()})"
        for each in (computing or found)
    ]
