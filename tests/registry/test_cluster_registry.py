"""Named clusters, the user's own TOML, and the way from a number of GPUs to equal nodes."""

import json
import os
import re
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.cluster import ClusterSpec
from toolkit.errors import ToolkitError
from toolkit.registry import files
from toolkit.registry.clusters import cluster_names, load_cluster, read_cluster, resolve_cluster
from toolkit.registry.efficiency import fabric_curve
from toolkit.units import GB, GIB

DOCUMENT = Path(__file__).parents[2] / "docs" / "clusters.md"

MINIMAL = 'name = "ours"\naccelerator = "h100-sxm5-80gb"\ngpus_per_node = 8\n'


def shape(cluster: ClusterSpec) -> tuple[int, int]:
    return cluster.nodes, cluster.gpus_per_node


def refused(*args: object, **options: object) -> str:
    with pytest.raises(ToolkitError) as caught:
        resolve_cluster(*args, **options)
    return str(caught.value)


def example(kind: str) -> str:
    """The commented example of docs/clusters.md."""
    found = re.search(rf"<!-- example: {kind} -->\n```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


# ---- what ships


@pytest.mark.parametrize("name", cluster_names())
def test_every_named_cluster_is_sound(name: str) -> None:
    cluster = load_cluster(name)
    file, _, notes = read_cluster(name)
    assert cluster.name == name and notes == ()
    assert shape(cluster) == (1, file.gpus_per_node)
    assert file.summary and cluster.host_memory_bytes > 0 and cluster.host_cores > 0
    for link in (cluster.intra_node, cluster.inter_node):
        assert link.bandwidth_bytes_per_second > 0 and link.latency_seconds > 0
        assert link.source and link.latency_source and not link.source.startswith("stated in")
    assert {"host_memory_bytes", "host_cores"} <= set(cluster.sources)
    assert cluster.fast_domain % cluster.gpus_per_node == 0
    # nothing leaves a node faster than it moves inside, and a GPU never sends more than its host link takes
    assert cluster.inter_node.bandwidth_bytes_per_second <= cluster.intra_node.bandwidth_bytes_per_second


def test_shipped_files_are_named_like_their_entry() -> None:
    found = files.entries("clusters")
    assert sorted(found) == sorted(path.stem for path in (files.SHIPPED / "clusters").glob("*.toml"))
    aliases = [files.normal(alias) for entry in found.values() for alias in entry.values.get("aliases", [])]
    assert len(set(aliases)) == len(aliases) and not set(aliases) & set(found)


@pytest.mark.parametrize("name", cluster_names())
def test_the_name_of_every_link_tells_its_kind(name: str) -> None:
    cluster = load_cluster(name)
    for link in (cluster.intra_node, cluster.inter_node):
        curve = fabric_curve(link)
        assert curve.words, f"{link.name} is of no known kind"
        assert any(link.name.lower().startswith(word) for word in curve.words), (
            f"{link.name} is taken for {curve.words}"
        )


# node network of the table in stas00/ml-engineering network/README.md, GB/s per node and direction
@pytest.mark.parametrize(
    ("name", "per_node"),
    [
        ("dgx-b300", 800),
        ("aws-p6-b300", 800),
        ("dgx-h100", 400),
        ("aws-p6-b200", 400),
        ("aws-p5en", 400),
        ("aws-p5", 400),
        ("gcp-a3-mega", 200),
        ("gcp-a3-high", 100),
        ("frontier", 100),
        ("aws-p4d", 50),
        ("gaudi2-hls", 37.5 * 8),
        ("gaudi3-hls", 75 * 8),
    ],
)
def test_network_of_a_node(name: str, per_node: float) -> None:
    cluster = load_cluster(name)
    assert cluster.inter_node.bandwidth_bytes_per_second * cluster.gpus_per_node == pytest.approx(per_node * GB)


@pytest.mark.parametrize(
    ("name", "per_gpu"),
    [
        ("dgx-2", 150),
        ("dgx-a100-80gb", 300),
        ("dgx-h100", 450),
        ("dgx-b200", 900),
        ("gb200-nvl72", 900),
        ("mi300x", 448),
        ("h100-pcie", 63),
        ("l40s-pcie", 31),
    ],
)
def test_links_inside_are_one_direction(name: str, per_gpu: float) -> None:
    assert load_cluster(name).intra_node.bandwidth_bytes_per_second == per_gpu * GB


def test_a_mesh_gives_one_peer_a_seventh() -> None:
    for name, peer in (("mi300x", 64), ("mi325x", 64), ("mi355x", 76.5)):
        link = load_cluster(name).intra_node
        assert link.peer_bandwidth_bytes_per_second == peer * GB == link.bandwidth_bytes_per_second / 7


# ---- how many nodes


@pytest.mark.parametrize(
    ("cluster", "gpus", "nodes"),
    [("gb200-nvl72", "64", (16, 4)), ("v100-dgx2", "64", (4, 16)), ("dgx-h100", "64", (8, 8))],
)
def test_node_sizes_other_than_eight(cluster: str, gpus: str, nodes: tuple[int, int]) -> None:
    assert shape(resolve_cluster(gpus, cluster=cluster)) == nodes


def test_the_fast_link_of_nvl72_spans_trays() -> None:
    assert resolve_cluster("64", cluster="gb200-nvl72").fast_domain == 72
    assert resolve_cluster("64", accelerator="gb200").fast_domain == 72
    assert resolve_cluster("18x2", cluster="gb200-nvl72").fast_domain == 36
    assert resolve_cluster("4", cluster="dgx-h100").fast_domain == 4


@pytest.mark.parametrize("gpus", ["1", "2", "3", "4", "7"])
def test_a_count_below_one_node_is_one_node(gpus: str) -> None:
    cluster = resolve_cluster(gpus, cluster="dgx-h100")
    assert shape(cluster) == (1, int(gpus))
    assert any(f"{gpus} of the 8 GPUs" in note for note in cluster.notes)


def test_a_last_partial_node_is_refused_with_the_ways_out() -> None:
    told = refused("12", cluster="dgx-h100")
    assert "last node would hold 4" in told
    assert "--gpus 8" in told and "--gpus 16" in told and "--gpus 2x6" in told
    told = refused("13", cluster="dgx-h100")  # a prime: no equal nodes of more than one
    assert "--gpus 8" in told and "--gpus 16" in told and "equal nodes" not in told
    assert shape(resolve_cluster("2x6", cluster="dgx-h100")) == (2, 6)
    assert shape(resolve_cluster("12", cluster="dgx-h100", gpus_per_node=6)) == (2, 6)


@given(st.integers(1, 4096), st.sampled_from(["dgx-h100", "gb200-nvl72", "dgx-2", "vista-gh200", "local-cpu"]))
@settings(max_examples=60, deadline=None)
def test_every_count_is_met_exactly_or_refused_with_counts_that_work(gpus: int, name: str) -> None:
    try:
        cluster = resolve_cluster(gpus, cluster=name)
        assert cluster.num_gpus == gpus
    except ToolkitError as error:
        offered = re.findall(r"--gpus ([0-9x]+)", str(error))
        assert len(offered) >= 2
        for text in offered:
            resolve_cluster(text, cluster=name)
        counts = [int(text) for text in offered if "x" not in text]
        assert min(counts) < gpus < max(counts) and max(counts) - min(counts) == load_cluster(name).gpus_per_node


def test_a_node_cannot_be_larger_than_it_is() -> None:
    assert "dgx-h100 has 8" in refused("8x16", cluster="dgx-h100")
    assert "--gpus 16x8" in refused("8x16", cluster="dgx-h100")
    assert "dgx-h100 has 8" in refused("32", cluster="dgx-h100", gpus_per_node=16)
    assert "--gpus-per-node 4" in refused("8x8", cluster="dgx-h100", gpus_per_node=4)


@pytest.mark.parametrize("gpus_per_node", [0, -1])
def test_a_node_has_gpus(gpus_per_node: int) -> None:
    assert "not positive" in refused("8", gpus_per_node=gpus_per_node)


def test_a_cpu_node_holds_as_many_workers_as_one_asks_for() -> None:
    for gpus, nodes in (("1", (1, 1)), ("2", (1, 2)), ("5", (1, 5)), ("2x2", (2, 2))):
        cluster = resolve_cluster(gpus, cluster="local-cpu")
        assert shape(cluster) == nodes
        assert cluster.site.gpu_request == "none" and cluster.accelerator.architecture == "cpu"
    assert shape(resolve_cluster("3", accelerator="cpu")) == (1, 3)


# ---- what a site allows


def capped(tmp_path: Path, extra: str = "") -> str:
    path = tmp_path / "capped.toml"
    path.write_text(MINIMAL + extra + "[site]\nmax_gpus_per_node = 4\n")
    return str(path)


def test_a_cap_of_4_on_nodes_of_8_makes_2_nodes_of_8_gpus(tmp_path: Path) -> None:
    cluster = resolve_cluster("8", cluster=capped(tmp_path, "host_memory_gib = 2000\nhost_cores = 100\n"))
    assert shape(cluster) == (2, 4)
    assert any("4 of the 8 GPUs" in note for note in cluster.notes)
    assert (cluster.host_memory_bytes, cluster.host_cores) == (1000 * GIB, 50)
    assert cluster.fast_domain == 4


@pytest.mark.parametrize("gpus", ["1x8", "2x8", "1x5"])
def test_what_a_cap_makes_impossible_is_flagged(tmp_path: Path, gpus: str) -> None:
    told = refused(gpus, cluster=capped(tmp_path))
    assert "site.max_gpus_per_node" in told and "never start" in told
    told = refused("8", cluster=capped(tmp_path), gpus_per_node=8)
    assert "never start" in told and "--gpus 2x4" in told


def test_a_network_card_that_a_node_shares_is_divided(tmp_path: Path) -> None:
    path = tmp_path / "shared.toml"
    network = '[inter_node]\nname = "RoCE"\ngbit_per_second_per_node = 400\nlatency_microseconds = 3\n'
    path.write_text(MINIMAL + network)
    for gpus, gigabytes in (("2x8", 50 / 8), ("2x4", 50 / 4), ("2x1", 50)):
        cluster = resolve_cluster(gpus, cluster=str(path))
        assert cluster.inter_node.bandwidth_bytes_per_second == pytest.approx(gigabytes * GB)
    # never more than the host link of one GPU takes, and under a cap others use the rest
    path.write_text(MINIMAL + network.replace("400", "3200"))
    assert resolve_cluster("2x1", cluster=str(path)).inter_node.bandwidth_bytes_per_second == 63 * GB
    path.write_text(MINIMAL + network + "[site]\nmax_gpus_per_node = 4\n")
    assert resolve_cluster("8", cluster=str(path)).inter_node.bandwidth_bytes_per_second == pytest.approx(6.25 * GB)


def test_no_more_nodes_than_there_are(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(MINIMAL + "nodes = 4\n")
    assert shape(resolve_cluster("32", cluster=str(path))) == (4, 8)
    assert shape(load_cluster(str(path))) == (4, 8)
    told = refused("64", cluster=str(path))
    assert "has 4" in told and "32 GPUs or fewer" in told


# ---- which cluster


def test_without_a_name_it_is_dgx_h100_and_says_so() -> None:
    cluster = resolve_cluster("64")
    assert (cluster.name, shape(cluster)) == ("dgx-h100", (8, 8))
    assert cluster.notes[0].startswith("no cluster was named: DGX H100")


def test_an_accelerator_comes_in_its_usual_node_and_says_so() -> None:
    cluster = resolve_cluster("64", accelerator="A100")
    assert cluster.accelerator.name == "a100-sxm4-40gb"
    assert "'A100' is taken as a100-sxm4-40gb" in cluster.notes[0]
    assert "no cluster was named: nodes of 8 a100-sxm4-40gb" in cluster.notes[1]
    assert {"intra_node.bandwidth_bytes_per_second", "inter_node.bandwidth_bytes_per_second"} <= set(cluster.assumed)
    assert shape(resolve_cluster("8", accelerator="gh200")) == (8, 1)
    half = resolve_cluster("32", accelerator="h100", gpus_per_node=4)
    assert shape(half) == (8, 4) and half.host_memory_bytes == 1024 * GIB


def test_a_card_in_the_gpu_count() -> None:
    assert resolve_cluster("2x8xA100-80GB").accelerator.name == "a100-sxm4-80gb"
    assert resolve_cluster("8xH100", accelerator="h100").accelerator.name == "h100-sxm5-80gb"
    assert resolve_cluster("8xH100", cluster="dgx-h100").name == "dgx-h100"
    assert "--accelerator a100, but --gpus names H100" in refused("8xH100", accelerator="a100")
    assert "cluster dgx-h200 has h200-sxm-141gb, not H100" in refused("8xH100", cluster="dgx-h200")
    assert "unknown accelerator 'H1000'" in refused("8xH1000")


def test_an_ambiguous_card_that_could_be_that_of_the_cluster_is_no_contradiction() -> None:
    assert resolve_cluster("8", cluster="dgx-a100-80gb", accelerator="A100").accelerator.name == "a100-sxm4-80gb"
    assert "has a100-sxm4-80gb, not a100-40gb" in refused("8", cluster="dgx-a100-80gb", accelerator="a100-40gb")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("DGX H100", "dgx-h100"),
        ("dgx_h100", "dgx-h100"),
        ("p5", "aws-p5"),
        ("P5.48xlarge", "aws-p5"),
        ("p4d", "aws-p4d"),
        ("nvl72", "gb200-nvl72"),
        ("dgx2", "dgx-2"),
    ],
)
def test_names_as_people_write_them(written: str, name: str) -> None:
    assert load_cluster(written).name == name


def test_dgx_a100_alone_is_40_gb_and_says_so() -> None:
    cluster = load_cluster("dgx-a100")
    assert cluster.accelerator.name == "a100-sxm4-40gb" and "40 and with 80 GB" in cluster.notes[0]


@pytest.mark.parametrize("name", ["my-unknown-cluster", "", "h100", "dgx", "\x00", "x" * 5000, "-rf /", "dgx-h100;ls"])
def test_an_unknown_cluster_is_an_error_with_the_list_and_never_a_default(name: str) -> None:
    told = refused("8", cluster=name)
    assert "unknown cluster" in told and "dgx-h100" in told and "gb200-nvl72" in told


def test_a_card_or_a_near_name_is_pointed_out() -> None:
    assert "--accelerator mi300x" not in refused("8", cluster="dgx-h10")
    assert "did you mean dgx-h100" in refused("8", cluster="dgx-h10")
    assert "--accelerator l40s" in refused("8", cluster="l40s")


def test_all_problems_at_once() -> None:
    told = refused("8x", cluster="nope", gpus_per_node=0)
    assert "GPU count '8x'" in told and "unknown cluster 'nope'" in told and "--gpus-per-node 0" in told


def test_a_broken_file_in_ones_own_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "broken.toml").write_text("name = = 3")
    (tmp_path / "clusters" / "odd.toml").write_text(
        'name = "odd"\naliases = 5\naccelerator = "h100"\ngpus_per_node = 8\n'
    )
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    assert "broken.toml" in refused("8")
    (tmp_path / "clusters" / "broken.toml").unlink()
    files._load.cache_clear()
    assert load_cluster("dgx-h100").name == "dgx-h100"
    assert "aliases: Expected array, got int" in refused("8", cluster="odd")


# ---- the user's own file


def test_the_documented_example_loads(tmp_path: Path) -> None:
    (tmp_path / "our-cluster.toml").write_text(example("cluster"))
    cluster = resolve_cluster("8", cluster=str(tmp_path / "our-cluster.toml"))
    assert (cluster.name, shape(cluster)) == ("our-cluster", (2, 4))
    assert cluster.intra_node.bandwidth_bytes_per_second == 450 * GB
    assert cluster.inter_node.bandwidth_bytes_per_second == 50 * GB
    assert cluster.inter_node.latency_seconds == pytest.approx(2e-6)
    assert cluster.storage_bandwidth_bytes_per_second == 40 * GB
    assert cluster.accelerator.price_per_hour == 2.5
    assert cluster.accelerator.sources["price_per_hour"] == "our wiki, page Hardware"
    assert cluster.site.environment == {"NCCL_IB_HCA": "mlx5"} and cluster.site.modules == ("cuda/12.6",)
    assert cluster.assumed == ("storage_bandwidth_bytes_per_second",)
    # it shows every key that there is
    keys = set(tomllib.loads(example("cluster"))) | {"any_gpus_per_node", "notes"}
    assert keys == set(read_cluster("dgx-h100")[0].__struct_fields__)


def test_the_documented_accelerator_loads(tmp_path: Path) -> None:
    (tmp_path / "my-card.toml").write_text(example("accelerator"))
    (tmp_path / "ours.toml").write_text(MINIMAL.replace("h100-sxm5-80gb", "./my-card.toml"))
    cluster = resolve_cluster("16", cluster=str(tmp_path / "ours.toml"))
    assert cluster.accelerator.name == "my-card"
    assert cluster.inter_node.bandwidth_bytes_per_second == pytest.approx(6.25 * GB)
    assert resolve_cluster("16", accelerator=str(tmp_path / "my-card.toml")).accelerator.name == "my-card"


def test_every_command_of_the_document_names_things_that_are_there() -> None:
    for name in re.findall(r"--cluster ([a-z0-9-]+)`", DOCUMENT.read_text()):
        load_cluster(name)


def test_what_is_left_out_is_usual_and_marked(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(MINIMAL)
    cluster = load_cluster(str(tmp_path / "ours.toml"))
    assert cluster.intra_node.bandwidth_bytes_per_second == 450 * GB
    assert set(cluster.assumed) == {
        *("host_memory_bytes", "host_cores"),
        *(
            f"{link}.{figure}"
            for link in ("intra_node", "inter_node")
            for figure in ("bandwidth_bytes_per_second", "latency_seconds")
        ),
    }


def test_own_clusters_by_name_hide_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "any.toml").write_text(
        MINIMAL.replace("ours", "dgx-h100").replace("= 8", "= 4") + 'aliases = ["the box"]\n'
    )
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    assert load_cluster("dgx-h100").gpus_per_node == 4
    assert load_cluster("The Box").gpus_per_node == 4
    assert resolve_cluster("8").nodes == 2


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'name = 5\naccelerator = "h100-sxm5-80gb"\ngpu_per_node = 8\n'
        '[site]\nmodules = "cuda"\ntime_limits = "1"\n[inter_node]\nname = "x"\nlatency_microseconds = nan\n'
    )
    told = refused("8", cluster=str(path))
    for part in (
        "name: Expected str, got int",
        "unknown key 'gpu_per_node'",
        "did you mean gpus_per_node",
        "missing key 'gpus_per_node'",
        "site.modules: Expected array",
        "unknown key 'site.time_limits'",
        "did you mean time_limit",
        "inter_node.latency_microseconds is nan",
    ):
        assert part in told, part
    assert str(path) in told


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("gpus_per_node = 0", "gpus_per_node = 0"),
        ("gpus_per_node = 100000000000000", "gpus_per_node = 100000000000000"),
        ("gpus_per_node = 8\nfast_domain_gpus = 12", "not a multiple"),
        ("gpus_per_node = 8\nnodes = -1", "nodes = -1"),
        ("gpus_per_node = 8\nhost_memory_gib = -1", "host_memory_gib = -1"),
        ('gpus_per_node = 8\n[site]\ngpu_request = "gress"', "did you mean gres"),
        ('gpus_per_node = 8\n[site]\ncontainer_runtime = "docker"', "container_runtime = 'docker'"),
        ('gpus_per_node = 8\n[site]\ntime_limit = "tomorrow"', "not a Slurm time"),
        ("gpus_per_node = 8\n[site]\nmax_gpus_per_node = -4", "max_gpus_per_node = -4"),
        ('gpus_per_node = 8\n[intra_node]\nname = "x"', "no bandwidth"),
        (
            'gpus_per_node = 8\n[inter_node]\nname = "x"\ngb_per_second_per_gpu = 50\ngbit_per_second_per_node = 3200',
            "gb_per_second_per_gpu and gbit_per_second_per_node together",
        ),
        ('gpus_per_node = 8\n[inter_node]\nname = "x"\ngb_per_second_per_gpu = -50', "is negative"),
        ("gpus_per_node = 8\nintra_node = 450", "intra_node must be a table"),
        ('gpus_per_node = 8\n[site]\npartition = "gpu\\n#SBATCH --uid=0"', "site.partition has a control character"),
        ('gpus_per_node = 8\n[site]\nmodules = ["cuda\\n"]', "site.modules has a control character"),
        ('gpus_per_node = 8\n[site.environment]\n"A B" = "x"', "'A B' is not the name of a variable"),
        ('gpus_per_node = 8\n[sources]\nhost_memory = "x"', "did you mean host_memory_gib"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, extra: str, told: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(f'name = "x"\naccelerator = "h100-sxm5-80gb"\n{extra}\n')
    assert told in refused("8", cluster=str(path))


@pytest.mark.parametrize("name", ["", " ", "a/b", "../x", "a\nb", "-rf", "x" * 101, "$(id)", "a;b", "'"])
def test_a_name_is_plain_words(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(MINIMAL.replace('"ours"', json.dumps(name)))
    assert "name" in refused("8", cluster=str(path)) and "letters, digits" in refused("8", cluster=str(path))


def test_files_that_are_not_files(tmp_path: Path) -> None:
    assert "is not there" in refused("8", cluster=str(tmp_path / "none.toml"))
    assert "is a folder" in refused("8", cluster=str(tmp_path) + "/")
    (tmp_path / "broken.toml").write_text('name = "a"\nnodes = = 3\n')
    assert "line 2" in refused("8", cluster=str(tmp_path / "broken.toml"))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xff\xfe"\n')
    assert "readable TOML" in refused("8", cluster=str(tmp_path / "latin.toml"))
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    assert "readable TOML" in refused("8", cluster=str(tmp_path / "deep.toml"))
    (tmp_path / "huge.toml").write_text("# " + "x" * 1_100_000)
    assert "larger than 1 MB" in refused("8", cluster=str(tmp_path / "huge.toml"))
    os.mkfifo(tmp_path / "pipe.toml")
    assert "not a regular file" in refused("8", cluster=str(tmp_path / "pipe.toml"))
    assert "is not there" in refused("8", cluster="./a\x00b.toml")
    assert refused("8", cluster="/" + "x" * 5000 + ".toml")


_VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters='"\\'), max_size=8),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    ["name", "accelerator", "gpus_per_node", "nodes", "aliases", "notes", "sources", "site", "host_memory_gib"]
    + ["intra_node", "inter_node", "fast_domain_gpus", "price_per_gpu_hour", "x"]
)


def as_toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(as_toml(each) for each in value) + "]"
    return repr(value)


@given(
    st.dictionaries(_KEYS, _VALUES, max_size=6),
    st.dictionaries(
        st.sampled_from(["name", "gb_per_second_per_gpu", "latency_microseconds", "y"]), _VALUES, max_size=3
    ),
    st.sampled_from(["", "[site]", "[intra_node]", "[inter_node]", "[sources]"]),
)
@settings(max_examples=150, deadline=None)
def test_any_toml_is_a_cluster_or_refused(top: dict[str, object], inner: dict[str, object], table: str) -> None:
    import tempfile

    text = MINIMAL if "name" not in top else ""
    text += "".join(f"{key} = {as_toml(value)}\n" for key, value in top.items() if not (text and key in text))
    if table and table[1:-1] not in top:
        text += table + "\n" + "".join(f"{key} = {as_toml(value)}\n" for key, value in inner.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.toml"
        path.write_text(text, encoding="utf-8")
        try:
            cluster = resolve_cluster("8", cluster=str(path))
            assert cluster.num_gpus == 8
        except ToolkitError as error:
            assert error.problems


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_refused_with_the_files_name(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.toml"
        path.write_bytes(content)
        with pytest.raises(ToolkitError, match="fuzz.toml"):
            resolve_cluster("8", cluster=str(path))


def test_a_cluster_is_read_in_a_few_milliseconds() -> None:
    resolve_cluster("64")
    files._load.cache_clear()
    before = time.process_time()
    resolve_cluster("64", cluster="dgx-h200")
    spent = time.process_time() - before
    assert spent < 0.05, f"{spent * 1e3:.1f} ms of CPU (normally 1 to 4)"
