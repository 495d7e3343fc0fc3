"""A real Slurm accepts every committed batch script, unedited, on nodes like those that it was written for."""

import re
from pathlib import Path

import pytest

from tests.cluster import slurm
from tests.cluster.conftest import started

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "slurm").rglob("*.sbatch"))
DIRECTIVE = re.compile(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", re.MULTILINE)
MOST_NODES = 64  # one slurmd each: 7 MB


def directives(script):
    return {name: value or "" for name, value in DIRECTIVE.findall(script.read_text())}


def gpus(options):
    """Type and count that the script asks of each node, or None."""
    text = options.get("gres", "").removeprefix("gpu:") or options.get("gpus-per-node", "")
    kind, _, count = text.rpartition(":")
    return (kind or "h100", int(count)) if count else None


@pytest.fixture(scope="module")
def cluster():
    """As many nodes, GPUs, GPU types and partitions as the scripts ask for."""
    assert SCRIPTS, "there are no scripts in slurm/"
    asked = [directives(script) for script in SCRIPTS]
    nodes = max(int(options["nodes"]) for options in asked)
    assert nodes <= MOST_NODES
    types: dict[str, int] = {}
    for kind, count in filter(None, map(gpus, asked)):
        types[kind] = max(count, types.get(kind, 0))
    partitions = {options["partition"] for options in asked if options.get("partition")} - {"urgent"}
    running = started(
        nodes=nodes,
        gres=",".join(f"gpu:{kind}:{count}" for kind, count in sorted(types.items())),
        partitions=" ".join(["main", *sorted(partitions - {"main"})]),
    )
    yield running
    slurm.stop(running)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_slurm_accepts(cluster, script):
    said = cluster.run("sbatch", "--test-only", str(script), cwd=ROOT)
    assert re.search(r"Job \d+ to start at", said), said


def test_there_are_scripts():
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_slurm_refuses_more_nodes_than_there_are(cluster, script):
    """The acceptance above means something."""
    said = cluster.run("sbatch", "--test-only", "--nodes=1000", str(script), cwd=ROOT, check=False)
    assert "allocation failure" in said and "to start at" not in said, said
