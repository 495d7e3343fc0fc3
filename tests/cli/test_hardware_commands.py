"""``toolkit accelerators`` and ``toolkit clusters`` as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli import accelerators, clusters
from toolkit.registry.accelerators import accelerator_names
from toolkit.registry.clusters import cluster_names


@pytest.fixture(autouse=True)
def no_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path / "nothing"))


def run(command: object, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def toolkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "toolkit", *arguments], capture_output=True, text=True, check=False)


def test_the_list_has_every_accelerator() -> None:
    text = run(accelerators.command).stdout
    assert all(f"\n{name} " in text for name in accelerator_names())
    rows = json.loads(run(accelerators.command, "--json").stdout)
    assert [row["name"] for row in rows] == accelerator_names()


def test_one_accelerator_shows_the_source_of_each_figure() -> None:
    text = run(accelerators.command, "NVIDIA H100 80GB HBM3").stdout
    assert "79.18 GiB" in text and "79.65 GiB" in text and "3.35 TB/s" in text
    assert "989 TFLOP/s" in text and "794.5 TFLOP/s" in text and "stas00/ml-engineering" in text
    assert "assumed" not in text


def test_assumed_figures_and_ambiguous_names_are_marked() -> None:
    text = run(accelerators.command, "v100").stdout
    assert "assumed: vendor data sheet" in text and "no bf16" in text
    assert "'v100' is taken as v100-sxm2-16gb (the least memory)" in text


def test_json_of_one_accelerator_is_in_si_units() -> None:
    values = json.loads(run(accelerators.command, "t4", "--json").stdout)
    assert values["peak_flop_per_second"] == {"fp16": 65e12, "fp32": 8.1e12}
    assert values["driver_total_bytes"] == 15360 * 2**20
    assert values["supports_bf16"] is False and values["supports_fp8"] is False
    assert "peak_flop_per_second" in values["assumed"]
    assert set(values["sources"]) >= {"memory_bytes", "memory_bandwidth_bytes_per_second"}


def test_the_list_has_every_cluster() -> None:
    text = run(clusters.command).stdout
    assert all(f"\n{name} " in text for name in cluster_names())
    rows = json.loads(run(clusters.command, "--json").stdout)
    assert [row["name"] for row in rows] == cluster_names()


def test_one_cluster_shows_its_nodes_links_and_sources() -> None:
    text = run(clusters.command, "gb200-nvl72", "--gpus", "64").stdout
    assert "16 x 4 = 64 gb200, 72 reach each other over NVLink5 NVL72" in text
    assert "900 GB/s per GPU and direction" in text and "50 GB/s per GPU and direction" in text
    assert "assumed: as NVLink4" in text and "note: assumed figures of gb200-nvl72" in text
    values = json.loads(run(clusters.command, "gb200-nvl72", "--gpus", "64", "--json").stdout)
    assert (values["nodes"], values["gpus_per_node"], values["num_gpus"], values["fast_domain"]) == (16, 4, 64, 72)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('name = "ours"\naccelerator = "A100"\ngpus_per_node = 4\n')
    text = run(clusters.command, str(path), "--gpus", "8").stdout
    assert "ours: 2 x 4 = 8 a100-sxm4-40gb" in text and "'A100' is taken as a100-sxm4-40gb" in text


def test_a_count_needs_a_cluster() -> None:
    result = CliRunner().invoke(clusters.command, ["--gpus", "64"])
    assert result.exit_code == 2 and "need a cluster" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("accelerators", "h1000"), "unknown accelerator 'h1000'"),
        (("accelerators", ""), "unknown accelerator ''"),
        (("clusters", "my-unknown-cluster"), "unknown cluster 'my-unknown-cluster'"),
        (("clusters", "dgx-h100", "--gpus", "12"), "last node would hold 4"),
        (("clusters", "./none.toml"), "is not there"),
    ],
)
def test_problems_go_to_stderr_with_code_2_and_no_traceback(arguments: tuple[str, ...], told: str) -> None:
    result = toolkit(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert told in result.stderr and "Traceback" not in result.stderr


def test_both_commands_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom toolkit.cli.main import main\n"
        "try:\n    main(['clusters', 'dgx-h100'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'torch', 'rich', 'yaml', 'pydantic'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"
