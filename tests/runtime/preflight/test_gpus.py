"""GPU health from nvidia-smi's XML log; its layout is that of driver 535 on an A100, the values are made up here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plans import DGX, TINY, plan
from toolkit import plan as plans
from toolkit.runtime.preflight import gpus

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
    assert gpus.judge({"n1": gpus.read(log({}, {}))}, 2, "n1") == []


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
    (trouble,) = gpus.judge({"n1": gpus.read(log({}, {})), "n2": gpus.read(log({}, changed))}, 2, "n1")
    assert trouble.nodes == ("n2",) and "GPU 1 (GPU-1)" in trouble.message and text in trouble.message


def test_a_lost_gpu_and_another_driver() -> None:
    found = {"n1": gpus.read(log({}, {})), "n2": gpus.read(log({})), "n3": gpus.read(log({}, {}, driver="550.1"))}
    said = {each.nodes: each.message for each in gpus.judge(found, 2, "n1")}
    assert said[("n2",)] == "1 GPUs are there, the plan needs 2"
    assert said[("n3",)] == "driver is 550.1, the other nodes have 535.54.03"


def test_what_is_no_log_is_told() -> None:
    with pytest.raises(OSError, match="no XML"):
        gpus.read("NVIDIA-SMI has failed")


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
