"""Every row of the published hardware table is there with its numbers; names are read as people write them."""

import csv
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.registry import files
from toolkit.registry.accelerators import accelerator_names, load_accelerator, match_accelerator, read_accelerator
from toolkit.registry.clusters import resolve_cluster
from toolkit.registry.hardware import ARCHITECTURES
from toolkit.units import GB, GIB, MIB, TERA

PUBLISHED = Path(__file__).parent.parent / "published" / "hardware.csv"
ROWS = list(csv.DictReader(PUBLISHED.open(newline="")))

# rows that are several entries here, and the MI250X, of which an entry is one of two dies
ENTRIES = {
    "V100-SXM2": ("v100-sxm2-16gb", "v100-sxm2-32gb"),
    "H20": ("h20-96gb", "h20-141gb"),
    "GH200": ("gh200-96gb", "gh200-141gb"),
}
SHARE = {"MI250X": 0.5}
# the table counts all 24 ports of a Gaudi; 3 of them leave the node
PORTS_INSIDE = {"Gaudi2": 21 / 24, "Gaudi3": 21 / 24}
RATES = {
    "fp16_dense_tflops": "fp16",
    "bf16_dense_tflops": "bf16",
    "fp8_dense_tflops": "fp8",
    "tf32_dense_tflops": "tf32",
    "fp32_tflops": "fp32",
}


def entries_of(row: dict[str, str]) -> list[str]:
    return list(ENTRIES.get(row["accelerator"], ())) or [match_accelerator(row["accelerator"]).name]


def choices(cell: str, count: int) -> list[float]:
    """The numbers of a cell like ``96 or 141``, one for each entry."""
    numbers = [float(number) for number in cell.split(" or ")]
    return numbers if len(numbers) == count else numbers * count


@pytest.mark.parametrize("row", ROWS, ids=[row["accelerator"] for row in ROWS])
def test_every_published_figure_is_the_one_in_use(row: dict[str, str]) -> None:
    names, share = entries_of(row), SHARE.get(row["accelerator"], 1.0)
    bandwidths = choices(row["hbm_gbs"], len(names))
    for name, bandwidth, gigabytes in zip(names, bandwidths, choices(row["mem_gb_marketed"], len(names)), strict=True):
        card = load_accelerator(name)
        assert card.vendor == row["vendor"]
        assert card.memory_bandwidth_bytes_per_second == bandwidth * share * GB
        assert 0.9 * gigabytes * share < card.memory_bytes / GIB < gigabytes * share
        for column, dtype in RATES.items():
            if row[column]:
                assert card.peak_flop_per_second[dtype] == pytest.approx(float(row[column]) * share * TERA, rel=1e-12)
        for column, dtype in (("mamf_bf16_tflops", "bf16"), ("mamf_fp8_tflops", "fp8")):
            if row[column]:
                assert card.achievable_flop_per_second[dtype] == float(row[column]) * TERA
        if row["torch_visible_gib"]:
            seen = float(row["torch_visible_gib"].split()[0])
            assert card.memory_bytes / GIB == pytest.approx(
                seen, abs=0.5 if "rounded" in row["torch_visible_gib"] else 0
            )


@pytest.mark.parametrize("row", ROWS, ids=[row["accelerator"] for row in ROWS])
def test_every_published_link_is_that_of_the_usual_node(row: dict[str, str]) -> None:
    for name in entries_of(row):
        cluster = resolve_cluster("1", accelerator=name)
        link, published = cluster.intra_node, float(row["intra_gbs_per_direction"])
        share = SHARE.get(row["accelerator"], 1.0) * PORTS_INSIDE.get(row["accelerator"], 1.0)
        if row["accelerator"] == "H100-NVL":  # the table has the bridge of a pair, more than two meet over PCIe
            assert (published, link.bandwidth_bytes_per_second) == (300.0, 63 * GB)
            continue
        assert link.bandwidth_bytes_per_second == published * share * GB
        peer = row["intra_p2p_gbs_per_direction"]
        if peer and "bridge" not in peer and float(peer) != published:
            assert link.peer_bandwidth_bytes_per_second == float(peer) * GB


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["nic_per_gpu_typ_gbps"]], ids=lambda row: row["accelerator"]
)
def test_every_published_network_is_that_of_the_usual_node(row: dict[str, str]) -> None:
    number = float(re.match("[0-9.]+", row["nic_per_gpu_typ_gbps"]).group())
    for name in entries_of(row):
        cluster = resolve_cluster(str(match_node(name)), accelerator=name)
        gigabits = cluster.inter_node.bandwidth_bytes_per_second * 8 / GB
        assert gigabits == pytest.approx(number * SHARE.get(row["accelerator"], 1.0))


def match_node(name: str) -> int:
    return read_accelerator(name)[0].node.gpus_per_node


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "general knowledge" in row["spec_source"]], ids=lambda r: r["accelerator"]
)
def test_figures_from_general_knowledge_are_marked_as_assumed(row: dict[str, str]) -> None:
    for name in entries_of(row):
        card = load_accelerator(name)
        assumed = {field.partition(".")[0] for field in card.assumed}
        assert {"peak_flop_per_second", "memory_bandwidth_bytes_per_second"} & assumed


def test_rows_from_a_table_are_not_marked_as_assumed() -> None:
    for name in ("h100-sxm5-80gb", "a100-sxm4-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "mi300x", "l40s"):
        assert load_accelerator(name).assumed == ()


@pytest.mark.parametrize("name", accelerator_names())
def test_every_entry_is_sound(name: str) -> None:
    file, where, note = read_accelerator(name)
    card = load_accelerator(name)
    assert card.name == name and note == "" and where.endswith(f"{name}.toml")
    assert card.architecture in ARCHITECTURES
    assert "fp32" in card.peak_flop_per_second or card.architecture == "gaudi"
    assert card.host_link_bytes_per_second > 0
    # every figure has a source of its own, and the total of the driver is not below what a process gets
    stated = {"memory_bytes", "memory_bandwidth_bytes_per_second", "peak_flop_per_second", "host_link_bytes_per_second"}
    stated |= {"achievable_flop_per_second"} if card.achievable_flop_per_second else set()
    stated |= {"driver_total_bytes"} if card.driver_total_bytes else set()
    assert stated <= set(card.sources)
    assert not any(source.startswith("stated in") for source in card.sources.values())
    if card.driver_total_bytes:
        assert 0.93 < card.memory_bytes / card.driver_total_bytes <= 1
    if file.marketed_memory_gb:
        assert 0.9 < file.memory_gib / file.marketed_memory_gb < 1
    for dtype, rate in card.achievable_flop_per_second.items():
        assert 0.4 < rate / card.peak_flop_per_second[dtype] < 1
    # peaks are dense: narrower types are at most twice as fast, and tensor rates are equal for both 16-bit types
    peaks = card.peak_flop_per_second
    if "fp8" in peaks and card.architecture != "gaudi":
        assert peaks["fp8"] / peaks["bf16"] == pytest.approx(2, rel=0.03)
    if {"fp16", "bf16"} <= peaks.keys():
        assert peaks["fp16"] == peaks["bf16"]
    if {"tf32", "bf16"} <= peaks.keys():
        assert peaks["bf16"] / peaks["tf32"] == pytest.approx(2, rel=0.03)


def test_what_the_hardware_cannot_do_is_not_there() -> None:
    for name in ("v100-sxm2-16gb", "v100-sxm2-32gb", "t4"):
        assert not load_accelerator(name).supports_bf16
    for name in accelerator_names():
        card = load_accelerator(name)
        eight_bit = card.architecture in ("ada", "hopper", "blackwell", "cdna3", "cdna4", "gaudi")
        assert card.supports_fp8 == eight_bit, name


@pytest.mark.parametrize(
    ("name", "total_mib"),
    [("H100", 81559), ("A100 80GB", 81920), ("A100 40GB", 40960), ("A10", 23028), ("L40S", 46068), ("T4", 15360)],
)
def test_totals_of_nvidia_smi(name: str, total_mib: int) -> None:
    card = load_accelerator(name)
    assert card.driver_total_bytes == total_mib * MIB
    assert card.memory_bytes < card.driver_total_bytes


def test_83_gb_fit_barely_on_an_a100_of_80_gb() -> None:
    card = load_accelerator("a100-80gb")
    assert pytest.approx(77.3, abs=0.01) == 83e9 / GIB
    assert card.memory_bytes / GIB == pytest.approx(79.35, abs=0.15)
    assert 0.95 < 83e9 / card.memory_bytes < 1


NAMES = {
    "A100": "a100-sxm4-40gb",
    "a100-40g": "a100-sxm4-40gb",
    "A100 80GB": "a100-sxm4-80gb",
    "A100 80 GiB": "a100-sxm4-80gb",
    "A100 (80 GB)": "a100-sxm4-80gb",
    "a100_80gb": "a100-sxm4-80gb",
    "a10080g": "a100-sxm4-80gb",
    "A100-80": "a100-sxm4-80gb",
    "A100-SXM4-80GB": "a100-sxm4-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A800-SXM4-80GB": "a800-sxm4-80gb",
    "h100": "h100-sxm5-80gb",
    "h100sxm5": "h100-sxm5-80gb",
    "H100 NVL": "h100-nvl-94gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "gh200": "gh200-96gb",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA GH200 144G HBM3e": "gh200-141gb",
    "NVIDIA B200": "b200-sxm-180gb",
    "NVIDIA B300 SXM6 AC": "b300-sxm-288gb",
    "GB200 NVL72": "gb200",
    "L40S": "l40s",
    "L40": "l40",
    "l4": "l4",
    "A10": "a10",
    "NVIDIA A10G": "a10g",
    "Tesla T4": "t4",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "Tesla V100-SXM3-32GB": "v100-sxm2-32gb",
    "4090": "rtx-4090",
    "RTX4090": "rtx-4090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "mi300x": "mi300x",
    "MI 300X": "mi300x",
    "AMD Instinct MI300X OAM": "mi300x",
    "AMD Instinct MI250X / MI250": "mi250x",
    "Intel Gaudi 3": "gaudi3",
    "HL-225": "gaudi2",
    "cpu": "cpu",
}


@pytest.mark.parametrize(("written", "name"), NAMES.items())
def test_names_as_people_write_them(written: str, name: str) -> None:
    assert match_accelerator(written).name == name
    assert match_accelerator(f"  {written.upper()} ").name == name


@pytest.mark.parametrize("written", ["A100", "a100-40g", "A100 80GB", "h100", "v100", "gh200", "h20", "H100-SXM"])
def test_a_name_that_fits_several_is_taken_safely_and_said(written: str) -> None:
    match = match_accelerator(written)
    assert repr(written) in match.note and match.name in match.note
    family = match.name.split("-")[0]
    alternatives = [name for name in re.findall(r"[a-z0-9-]+", match.note) if name.startswith(f"{family}-")]
    least = load_accelerator(match.name).memory_bytes
    assert len(set(alternatives)) > 1
    assert all(
        load_accelerator(name).memory_bytes > 0.99 * least for name in alternatives if name in accelerator_names()
    )
    assert match.note in load_accelerator(written).notes


@pytest.mark.parametrize("written", ["A100-SXM4-80GB", "L40S", "mi300x", "H100 NVL", "NVIDIA H100 80GB HBM3"])
def test_a_name_that_fits_one_needs_no_note(written: str) -> None:
    assert match_accelerator(written).note == ""


@pytest.mark.parametrize(
    "written",
    ["my-unknown-cluster", "", " ", "nvidia", "rtx", "sxm", "80gb", "A100 60GB", "3090 Ti", "RTX 6000", "H200 NVL"]
    + ["tpu v5p", "H100!!", "H100;rm -rf /", "abc100", "\x00", "x" * 5000, "H100\n\n-X", "8xH100", "RTX PRO 6000"],
)
def test_an_unknown_name_is_an_error_with_the_list_and_never_a_default(written: str) -> None:
    with pytest.raises(ToolkitError, match="unknown accelerator") as caught:
        load_accelerator(written)
    remedy = caught.value.problems[0].remedy
    assert all(name in remedy for name in ("a100-sxm4-40gb", "h100-sxm5-80gb", "mi300x"))


def test_near_names_are_offered() -> None:
    for written, near in {"H200 NVL": "h200-sxm-141gb", "A100 60GB": "a100-sxm4-80gb", "mi300": "mi300x"}.items():
        with pytest.raises(ToolkitError) as caught:
            load_accelerator(written)
        assert near in caught.value.problems[0].remedy.partition("known:")[0]
    with pytest.raises(ToolkitError, match="--cluster dgx-h100"):
        load_accelerator("dgx-h100")


@given(st.text(max_size=30))
@settings(deadline=None)
def test_any_text_is_a_known_accelerator_or_refused(text: str) -> None:
    try:
        assert load_accelerator(text).name in accelerator_names()
    except ToolkitError as error:
        assert error.problems


@given(st.sampled_from(accelerator_names()), st.sampled_from(["", "NVIDIA ", "Tesla ", "AMD Instinct "]), st.booleans())
@settings(deadline=None)
def test_every_canonical_name_is_its_own(name: str, vendor: str, blanks: bool) -> None:
    written = vendor + (name.replace("-", " ") if blanks else name).upper()
    assert match_accelerator(written) == (name, "")


OWN = """
name = "my-card"
aliases = ["Mine One"]
architecture = "hopper"
memory_gib = 60
memory_bandwidth_gb_per_second = 2000
peak_tflop_per_second = { bf16 = 500 }
"""


def test_the_users_own_file_is_found_by_name_alias_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "accelerators"
    folder.mkdir()
    (folder / "mine.toml").write_text(OWN)
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    for written in ("my-card", "MY CARD", "mine one", str(folder / "mine.toml")):
        card = load_accelerator(written)
        assert (card.name, card.memory_bytes, card.assumed) == ("my-card", 60 * GIB, ())
    assert "my-card" in accelerator_names()
    with pytest.raises(ToolkitError, match="no \\[node\\]"):
        resolve_cluster("8", accelerator="my-card")


def test_the_users_own_file_hides_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "accelerators"
    folder.mkdir()
    (folder / "any.toml").write_text(OWN.replace("my-card", "h100-sxm5-80gb"))
    assert load_accelerator("h100-sxm5-80gb").memory_bytes == 79.18 * GIB
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    assert load_accelerator("h100-sxm5-80gb").memory_bytes == 60 * GIB


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text('name = "x"\narchitecture = "hoper"\nmemory_gibs = 60\nmemory_bandwidth_gb_per_second = "fast"\n')
    with pytest.raises(ToolkitError) as caught:
        load_accelerator(str(path))
    told = str(caught.value)
    assert "unknown key 'memory_gibs'" in told and "did you mean memory_gib" in told
    assert "missing key 'memory_gib'" in told and "missing key 'peak_tflop_per_second'" in told
    assert "memory_bandwidth_gb_per_second: Expected float, got str" in told
    path.write_text(OWN.replace('"hopper"', '"hoper"').replace("60", "-60").replace("bf16 = 500", "bf16 = 0, bf17 = 2"))
    with pytest.raises(ToolkitError) as caught:
        load_accelerator(str(path))
    told = str(caught.value)
    assert "unknown architecture 'hoper'" in told and "did you mean hopper" in told
    assert (
        "memory_gib = -60" in told and "peak_tflop_per_second.bf16 = 0" in told and "peak_tflop_per_second.bf17" in told
    )


def test_sparse_peaks_are_noticed_by_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(OWN + "achievable_tflop_per_second = { bf16 = 600 }\n")
    with pytest.raises(ToolkitError, match="above its peak"):
        load_accelerator(str(path))


def test_shipped_files_are_named_like_their_entry() -> None:
    found = files.entries("accelerators")
    assert sorted(found) == sorted(path.stem for path in (files.SHIPPED / "accelerators").glob("*.toml"))
    aliases = [files.normal(alias) for entry in found.values() for alias in entry.values.get("aliases", [])]
    assert len(set(aliases)) == len(aliases) and not set(aliases) & set(found)


def test_infinite_figures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    for number in ("nan", "inf", "-inf"):
        path.write_text(OWN.replace("60", number))
        with pytest.raises(ToolkitError, match="memory_gib is"):
            load_accelerator(str(path))
    assert math.isfinite(load_accelerator("h100").memory_bytes)
