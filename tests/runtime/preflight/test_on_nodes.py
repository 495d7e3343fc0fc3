"""toolkit preflight on nodes with networks of their own: what is broken there is really broken."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.finetune_runs import tiny_plan, write
from tests.runtime.preflight.nodes import Nodes

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write(tiny_plan("ddp", ranks=1, zero=0), tmp_path / "job")


@pytest.fixture
def nodes(tmp_path: Path):
    made = Nodes(tmp_path, 3)
    yield made
    made.close()


def checks(found: dict) -> set[tuple[str, tuple[str, ...]]]:
    return {(each["check"], tuple(each["nodes"])) for each in found["troubles"] if each["severity"] == "error"}


def test_good_nodes_pass(tmp_path: Path, plan: Path) -> None:
    four = Nodes(tmp_path, 4)
    try:
        codes, said, found = four.preflight(plan)
    finally:
        four.close()
    assert set(codes.values()) == {0}, said
    assert found["bad_nodes"] == [] and found["nodes"] == ["n1", "n2", "n3", "n4"]
    pairs = found["measured"]["collective"]
    assert len(pairs) == 6 and all(each["seconds"] > 0 and not each["error"] for each in pairs)


def test_a_slow_link_is_named(nodes: Nodes, plan: Path) -> None:
    nodes.run(3, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "40mbit", "burst", "64kb", "latency", "1s")
    codes, said, found = nodes.preflight(plan)
    assert set(codes.values()) == {76}, said
    assert found["bad_nodes"] == ["n3"]
    assert "bad node: n3" in said[1] and (plan.parent / "run" / "preflight.bad").read_text() == "n3\n"


def test_a_node_that_never_comes_is_named(nodes: Nodes, plan: Path) -> None:
    codes, said, found = nodes.preflight(plan, "--time-limit", "20", absent=(2,))
    assert set(codes.values()) == {76}, said
    assert checks(found) == {("reach", ("n2",))}


def test_a_node_without_network_is_named_by_both_sides(nodes: Nodes, plan: Path) -> None:
    nodes.run(2, "ip", "link", "set", "eth0", "down")
    codes, said, found = nodes.preflight(plan, "--time-limit", "20")
    assert set(codes.values()) == {76}, said
    assert found["bad_nodes"] == ["n2"]
    assert "bad node: n2" in said[2]


def test_the_first_node_without_network_is_named(nodes: Nodes, plan: Path) -> None:
    nodes.run(1, "ip", "link", "set", "eth0", "down")
    codes, said, found = nodes.preflight(plan, "--time-limit", "20")
    assert set(codes.values()) == {76}, said
    assert found["bad_nodes"] == ["n1"]


def test_another_version_through_the_path_is_named(nodes: Nodes, plan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "transformers-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.0.1\n")
    codes, said, found = nodes.preflight(plan, environment={3: {"PYTHONPATH": str(other.parent)}})
    assert set(codes.values()) == {76}, said
    assert checks(found) == {("versions", ("n3",))}
    assert "transformers is 0.0.1" in said[1]


def test_a_clock_that_is_off_is_named(nodes: Nodes, plan: Path, tmp_path: Path) -> None:
    shift = tmp_path / "shift"
    shift.mkdir()
    (shift / "sitecustomize.py").write_text("import time\n_now = time.time\ntime.time = lambda: _now() - 90.0\n")
    codes, said, found = nodes.preflight(plan, environment={2: {"PYTHONPATH": str(shift)}})
    assert set(codes.values()) == {76}, said
    assert checks(found) == {("clock", ("n2",))}
    assert found["measured"]["hosts"]["n2"]["clock"][0] == pytest.approx(90.0, abs=0.5)


def test_a_name_that_resolves_to_loopback_is_named(tmp_path: Path, plan: Path) -> None:
    three = Nodes(tmp_path, 3, own_name="127.0.1.1")
    try:
        codes, said, found = three.preflight(plan)
        assert set(codes.values()) == {76}, said
        assert checks(found) == {("name", ("n2",))} and "127.0.1.1" in said[1]
        cured = {node: {"GLOO_SOCKET_IFNAME": "eth0"} for node in (1, 2, 3)}
        codes, said, found = three.preflight(plan, environment=cured, at="n1:23501")
        assert set(codes.values()) == {0}, said
    finally:
        three.close()


def test_a_full_disk_stops_the_job_with_the_reason(nodes: Nodes, plan: Path) -> None:
    output = plan.parent / "full"
    output.mkdir()
    for node in (1, 2, 3):
        nodes.run(node, "mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(output))
        nodes.run(node, "sh", "-c", f"cat /dev/zero >{output}/other 2>/dev/null || true")
    codes, said, _ = nodes.preflight(plan, "--output-dir", str(output))
    assert set(codes.values()) == {1}, said
    assert "No space left on device" in said[1]


def test_an_output_folder_of_each_node_by_itself_stops_the_job(nodes: Nodes, plan: Path) -> None:
    output = plan.parent / "apart"
    output.mkdir()
    for node in (1, 2, 3):
        nodes.run(node, "mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(output))
    codes, said, _ = nodes.preflight(plan, "--output-dir", str(output))
    assert set(codes.values()) == {1}, said
    assert "not the folder that the first node writes to" in said[1]


def test_a_full_disk_alone(tmp_path: Path, plan: Path) -> None:
    output = tmp_path / "full"
    output.mkdir()
    words = f"mount -t tmpfs -o size=4m tmpfs {output} && exec {sys.executable} -m toolkit preflight {plan}"
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", f"{words} --output-dir {output}"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"4 MiB free in {output}, 3 checkpoints of " in done.stderr
