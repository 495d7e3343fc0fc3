"""GPU health from nvidia-smi's XML log: real logs of drivers 418 to 595, and faults written into the layout of 535."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.plans import DGX, TINY, plan
from toolkit import plan as plans
from toolkit.runtime.preflight import gpus, smi

GPU = """
<gpu id="00000000:01:00.0"><product_name>{name}</product_name><uuid>GPU-{index}</uuid>
<minor_number>{index}</minor_number><gpu_reset_status><reset_required>No</reset_required></gpu_reset_status>
<{reasons}><{reason}_gpu_idle>Active</{reason}_gpu_idle>
<{reason}_hw_thermal_slowdown>{hot}</{reason}_hw_thermal_slowdown></{reasons}>
<fb_memory_usage><total>81920 MiB</total><reserved>869 MiB</reserved><used>{used} MiB</used></fb_memory_usage>
<ecc_errors><volatile><sram_correctable>9</sram_correctable><sram_uncorrectable>0</sram_uncorrectable>
<dram_uncorrectable>{errors}</dram_uncorrectable></volatile>
<aggregate><dram_uncorrectable>7</dram_uncorrectable></aggregate></ecc_errors>
<retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
<remapped_rows><remapped_row_pending>{pending}</remapped_row_pending>
<remapped_row_failure>No</remapped_row_failure></remapped_rows>
<clocks><sm_clock>345 MHz</sm_clock></clocks><max_clocks><sm_clock>1980 MHz</sm_clock></max_clocks>
<processes><process_info><pid>77</pid><process_name>python</process_name></process_info></processes></gpu>
"""
GOOD = {
    "name": "NVIDIA H100 80GB HBM3",
    "hot": "Not Active",
    "used": 4,
    "errors": 0,
    "pending": "No",
    "reasons": "clocks_event_reasons",
    "reason": "clocks_event_reason",
}


def log(*changed: dict, driver: str = "535.54.03") -> str:
    cards = "".join(GPU.format(**GOOD | {"index": index} | each) for index, each in enumerate(changed))
    return f"<nvidia_smi_log><driver_version>{driver}</driver_version>{cards}</nvidia_smi_log>"


def test_good_gpus_are_no_trouble() -> None:
    assert gpus.judge({"n1": smi.read(log({}, {}))}, 2, "n1") == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"errors": 3}, "3 uncorrectable memory errors"),
        ({"pending": "Yes"}, "remap broken memory rows"),
        ({"used": 40000}, "39.1 GiB in use before the job starts by python (77)"),
        ({"hot": "Active"}, "hw_thermal_slowdown), at 345 of 1980 MHz"),
        (
            {"hot": "Active", "reasons": "clocks_throttle_reasons", "reason": "clocks_throttle_reason"},
            "hw_thermal_slowdown",
        ),
    ],
)
def test_each_fault_names_node_and_gpu(changed: dict, text: str) -> None:
    (trouble,) = gpus.judge({"n1": smi.read(log({}, {})), "n2": smi.read(log({}, changed))}, 2, "n1")
    assert trouble.nodes == ("n2",) and "GPU 1 (GPU-1)" in trouble.message and text in trouble.message


def test_a_lost_gpu_and_another_driver() -> None:
    found = {"n1": smi.read(log({}, {})), "n2": smi.read(log({})), "n3": smi.read(log({}, {}, driver="550.1"))}
    said = {each.nodes: each.message for each in gpus.judge(found, 2, "n1")}
    assert said[("n2",)] == "1 GPU is there, the plan needs 2"
    assert said[("n3",)] == "driver is 550.1, the other nodes have 535.54.03"


def test_what_is_no_log_is_told() -> None:
    with pytest.raises(OSError, match="no XML: NVIDIA-SMI has failed"):
        smi.read("NVIDIA-SMI has failed")
    with pytest.raises(OSError, match="what is no XML"):
        smi.read("<nvidia_smi_log><gpu></nvidia_smi_log>")


def test_the_command_asks_the_program_on_the_path(tmp_path: Path) -> None:
    made = plan("gpt", TINY, DGX, framework="deepspeed", zero_stage=2)
    (tmp_path / "plan.json").write_text(plans.dump(made))
    (tmp_path / "log.xml").write_text(log(*[{}] * 3, {"errors": 1}))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = '-q -x' ] && cat {tmp_path}/log.xml\n")
    program.chmod(0o755)
    words = ["-m", "toolkit", "preflight", str(tmp_path / "plan.json"), "--nodes", "1", "--skip", "storage"]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "n7"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 76, done.stderr
    assert "1 uncorrectable memory errors" in done.stderr and "bad node: n7" in done.stderr
    assert "4 GPUs are there, the plan needs 8" in done.stderr


PUBLISHED = Path(__file__).parents[2] / "published" / "nvidia_smi"


@pytest.mark.parametrize(
    ("name", "driver", "mib", "clocks"),
    [
        ("quadro-p400-driver-418", "418.43", 0, (139, 1252)),
        ("tesla-t4-driver-515", "515.105.01", 1032, (585, 1590)),
        ("a100-mig-driver-535", "535.54.03", 50, (1275, 1410)),
        ("rtx-4000-ada-driver-595", "595.84", 3534, (210, 3105)),
    ],
)
def test_real_logs_are_read(name: str, driver: str, mib: int, clocks: tuple[int, int]) -> None:
    (gpu,) = smi.read((PUBLISHED / f"{name}.xml").read_text())
    assert (gpu["driver"], gpu["used_bytes"], (gpu["sm_clock_mhz"], gpu["max_sm_clock_mhz"])) == (
        *(driver, mib * 2.0**20),
        clocks,
    )
    assert not gpu["failed"] and not gpu["recovery"] and not gpu["uncorrectable_errors"] and not gpu["slowed_by"]
    assert not any(gpu[fact] for fact, _, _ in gpus.FAULTS)
    said = [each.message for each in gpus.judge({"n1": [gpu]}, 1, "n1")]
    assert len(said) == (name in ("a100-mig-driver-535", "rtx-4000-ada-driver-595"))
    if "mig" in name:
        assert "is split into instances (MIG), the plan needs it whole" in said[0]
    if "4000" in name:  # two of its four processes only draw on a screen
        assert said[0].endswith(
            "has 3.5 GiB in use before the job starts by python (4937), /usr/lib/chromium/chromium (34626)"
        )


CORRUPT = "WARNING: infoROM is corrupted at gpu 0000:07:00.0"


@pytest.mark.parametrize(
    ("place", "was", "becomes", "text"),
    [
        ("ecc_errors/volatile/dram_uncorrectable", "0", "32", "32 uncorrectable memory errors"),
        ("ecc_errors/volatile/sram_uncorrectable", "0", "1", "1 uncorrectable memory errors"),
        ("retired_pages/pending_blacklist", "No", "Yes", "retire broken memory pages"),
        ("fb_memory_usage/used", "1032 MiB", "ERR!", "cannot be read by its driver: used is ERR!"),
        ("power_readings/power_draw", "26.78 W", "[Unknown Error]", "power_draw is Unknown Error"),
        ("temperature/gpu_temp", "40 C", "GPU requires reset", "gpu_temp is GPU requires reset"),
        ("fan_speed", "N/A", "ERR!", ""),  # no fan of its own
        ("clocks/sm_clock", "585 MHz", "Not Supported", ""),
        ("fb_memory_usage/used", "1032 MiB", "[N/A]", ""),
        ("processes/process_info/process_name", "/usr/lib/xorg/Xorg", "ERR!", ""),
    ],
)
def test_a_field_that_is_not_there_is_no_fault_and_one_that_fails_is(place, was, becomes, text) -> None:
    root = ElementTree.parse(PUBLISHED / "tesla-t4-driver-515.xml").getroot()
    field = root.find(f"gpu/{place}")
    assert field is not None and (field.text or "").strip() == was
    field.text = becomes
    said = [each.message for each in gpus.judge({"n1": smi.read(ElementTree.tostring(root, "unicode"))}, 1, "n1")]
    assert len(said) == bool(text) and text in "".join(said)


@pytest.mark.parametrize(
    ("place", "becomes", "text"),
    [
        ("gpu_recovery_action", "Drain and Reset", "its driver asks for 'Drain and Reset'"),
        ("gpu_recovery_action", "Requested functionality has been deprecated", ""),
        ("ecc_errors/tpc_repair_pending", "Yes", "waits for a reset to repair"),
        ("ecc_errors/unrepairable_memory", "Yes", "more memory errors than its maker allows"),
        ("ecc_errors/aggregate/sram_threshold_exceeded", "Yes", "more memory errors than its maker allows"),
        ("ecc_errors/volatile/sram_uncorrectable_parity", "2", "2 uncorrectable"),
        ("ecc_errors/aggregate/dram_uncorrectable", "71", ""),  # of its whole life
        ("clocks_event_reasons/clocks_event_reason_sw_power_cap", "Active", ""),  # as it should be under load
        ("clocks_event_reasons/clocks_event_reason_hw_slowdown", "Active", "slowed down (hw_slowdown)"),
    ],
)
def test_what_newer_drivers_tell(place: str, becomes: str, text: str) -> None:
    root = ElementTree.parse(PUBLISHED / "rtx-4000-ada-driver-595.xml").getroot()
    for where, value in (("fb_memory_usage/used", "4 MiB"), (place, becomes)):
        field = root.find(f"gpu/{where}")
        assert field is not None
        field.text = value
    said = [each.message for each in gpus.judge({"n1": smi.read(ElementTree.tostring(root, "unicode"))}, 1, "n1")]
    assert len(said) == bool(text) and text in "".join(said)


def smi_says(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int, to: str = "") -> None:
    """A program of that name on PATH, which says this and ends like that."""
    (folder / "said").write_text(text)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\ncat {folder}/said {to}\nexit {code}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("said", "code", "told", "remedy"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183",
            *(18, "nvidia-smi failed (18): Failed to initialize NVML: Driver/library version mismatch", "reload its"),
        ),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.",
            *(9, "nvidia-smi failed (9): NVIDIA-SMI has failed because it couldn't communicate", "modprobe nvidia"),
        ),
        ("No devices were found", 6, "nvidia-smi failed (6): No devices were found", "whether the job was given GPUs"),
        ("No devices were found", 0, "nvidia-smi wrote no XML: No devices were found", "whether the job was given"),
        (
            "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error",
            *(15, "nvidia-smi failed (15): Unable to determine the device handle", "reboot the node"),
        ),
        (
            "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover "
            "this GPU",
            *(15, "GPU is lost", "reboot the node"),
        ),
        (
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
            "Driver is properly installed and present in your system.",
            *(12, "couldn't find libnvidia-ml.so", "a container needs them"),
        ),
        ("", 255, "nvidia-smi failed (255): it says nothing", "look at the driver"),
        ("", 0, "nvidia-smi wrote no XML: nothing", "look at the driver"),
    ],
)
@pytest.mark.parametrize("to", ["", ">&2"])
def test_what_it_says_instead_of_a_log(tmp_path, monkeypatch, said, code, told, remedy, to) -> None:
    if to and not code:
        to = ""
    smi_says(tmp_path, monkeypatch, said, code, to)
    with pytest.raises(smi.Unreadable) as caught:
        smi.facts(8, "NVIDIA", 10.0)
    assert told in str(caught.value) and remedy in caught.value.remedy


def test_a_warning_beside_the_log_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi_says(tmp_path, monkeypatch, f"{CORRUPT}\n<?xml version='1.0' ?>\n{log({})}\n{CORRUPT}\n", 14)
    found = smi.facts(1, "NVIDIA", 10.0)
    assert isinstance(found, list) and gpus.judge({"n1": found}, 1, "n1") == []


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, "0123"),
        ("2,3", "23"),
        ("GPU-3,GPU-1", "31"),
        ("1,9,2", "1"),  # as in CUDA: what there is not ends the list
        ("", ""),
        ("NoDevFiles", ""),
        ("-1", ""),
    ],
)
def test_only_the_gpus_of_this_job_are_looked_at(tmp_path, monkeypatch, visible, indices) -> None:
    """Another job trains on GPU 0 of this node, and nothing hides it."""
    smi_says(tmp_path, monkeypatch, log({"used": 70000}, {}, {}, {}), 0)
    monkeypatch.setattr(smi, "SETTLE_SECONDS", 0.0)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = smi.facts(4, "NVIDIA", 10.0)
    assert isinstance(found, list) and "".join(gpu["index"] for gpu in found) == indices
    said = [each.message for each in gpus.judge({"n1": found}, len(indices), "n1")]
    assert len(said) == ("0" in indices)


def test_what_the_plan_does_not_use_need_not_be_whole() -> None:
    found = smi.read(log({}, {"errors": 3}))
    assert gpus.judge({"n1": found}, 1, "n1") == [] and len(gpus.judge({"n1": found}, 2, "n1")) == 1


def test_instances_are_left_out_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi_says(tmp_path, monkeypatch, log({}), 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-4a4b1f0e-7c1c-5b3e-9d7e-000000000000")
    assert smi.facts(1, "NVIDIA", 10.0) == {"skipped": "instances of a GPU (MIG) are not looked at"}


def test_memory_of_a_process_that_has_just_been_killed_is_waited_for(tmp_path, monkeypatch) -> None:
    smi_says(tmp_path, monkeypatch, log({"used": 70000}), 0)
    (tmp_path / "free").write_text(log({}))
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/said\ncp {tmp_path}/free {tmp_path}/said\n")
    found = smi.facts(1, "NVIDIA", 60.0)
    assert isinstance(found, list) and gpus.judge({"n1": found}, 1, "n1") == []


def test_without_the_program_a_plan_for_nvidia_is_refused_where_there_are_no_devices(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert smi.facts(8, "AMD", 10.0) == {"skipped": "there is no nvidia-smi"}
    with pytest.raises(
        smi.Unreadable, match="no nvidia-smi here, and [0-9]+ NVIDIA devices in /dev; the plan needs 99"
    ):
        smi.facts(99, "NVIDIA", 10.0)
    assert smi.facts(0, "NVIDIA", 10.0) == {"skipped": "there is no nvidia-smi"}
